package mem_test

import (
	"testing"

	"github.com/verbena-cloud/verbena/internal/store"
	"github.com/verbena-cloud/verbena/internal/store/mem"
	"github.com/verbena-cloud/verbena/internal/store/replica"
	"github.com/verbena-cloud/verbena/internal/store/storetest"
)

func TestConformance(t *testing.T) {
	storetest.Run(t, storetest.Engine{Open: func(_ *testing.T, o storetest.Options) store.DB {
		return mem.With(replica.Config{History: o.History, Queue: o.Queue})
	}})
}
