// Package backup writes a store's whole state, at one revision, into a file and reads it back into an empty
// store. It needs nothing but the store contract, so it works alike on every engine, while the store serves.
//
// A backup is text, one JSON document per line, so that it can be looked into with jq:
//
//	{"format":"verbena-backup","version":1,"revision":4711,"count":2,"made":"2026-05-01T12:00:00Z","by":"v0.1"}
//	{"key":"/o/Tenant/_/ai","value":"eyJ…","created":12,"rev":40}
//	{"key":"/usage/ai","value":"eyJ…","created":13,"rev":4711}
//	{"sha256":"9f86d0…","count":2}
//
// value is base64 of the stored bytes. Keys ascend. The last line's sha256 covers every byte before that
// line. created and rev are the revisions in the store that was saved; a restored store counts its own.
package backup
