package api

// ServerStatus is what an operator must know of a server and its store.
type ServerStatus struct {
	Version    string      `json:"version"`
	Engine     string      `json:"engine" enum:"memory,etcd-embedded,etcd" doc:"What keeps the state"`
	Revision   int64       `json:"revision" doc:"Of the last commit"`
	Size       int64       `json:"size" doc:"Bytes that the store takes"`
	Limit      int64       `json:"limit,omitempty" doc:"Bytes at which the store refuses writes; 0 = none"`
	Members    int         `json:"members,omitempty"`
	Conditions []Condition `json:"conditions,omitempty"`
}
