package server

import (
	"github.com/verbena-cloud/verbena/internal/object"
	"github.com/verbena-cloud/verbena/internal/store"
	"github.com/verbena-cloud/verbena/internal/wire"
)

func (s *Server) takeVM(tx store.Tx, name string, st wire.VMStatus, _ object.Who) error {
	_, err := held(tx, name, st.UID)
	return err
}
