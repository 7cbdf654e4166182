package api_test

import (
	"encoding/json"
	"testing"

	"github.com/verbena-cloud/verbena/api"
)

// TestRDMAKeepsItsForm: a spec is given back as it was written, short form or long.
func TestRDMAKeepsItsForm(t *testing.T) {
	for _, in := range []string{`{"vcpus":1,"memory":"1GiB","rdma":true}`, `{"vcpus":1,"memory":"1GiB","rdma":false}`, `{"vcpus":1,"memory":"1GiB","rdma":{"vfs":2,"ha":"dual-vf"}}`, `{"vcpus":1,"memory":"1GiB"}`, `{"vcpus":1,"memory":"1GiB","rdma":{}}`} {
		var f api.FlavorSpec
		if err := json.Unmarshal([]byte(in), &f); err != nil {
			t.Fatal(err)
		}
		out, err := json.Marshal(f)
		if err != nil || string(out) != in {
			t.Errorf("%s came back as %s, %v", in, out, err)
		}
	}
	var f api.FlavorSpec
	if err := json.Unmarshal([]byte(`{"rdma":{"vfz":2}}`), &f); err == nil {
		t.Error("an unknown field inside rdma was taken")
	}
	for in, want := range map[string]bool{`{}`: false, `{"rdma":null}`: false, `{"rdma":true}`: true, `{"rdma":false}`: false, `{"rdma":{}}`: true} {
		var f api.FlavorSpec
		if err := json.Unmarshal([]byte(in), &f); err != nil || f.RDMA.Wanted() != want {
			t.Errorf("%s wants RDMA: %v, %v", in, f.RDMA.Wanted(), err)
		}
	}
}
