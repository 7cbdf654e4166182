package agent

import (
	"errors"
	"syscall"

	"github.com/verbena-cloud/verbena/internal/fault"
)

// errno gives the words of the system for err, without paths or other detail.
func errno(err error) string {
	if e, ok := errors.AsType[syscall.Errno](err); ok {
		return e.Error()
	}
	return err.Error()
}

// text says what to tell people about err: the text of a fault, or the error as it is, since the agent's
// own errors name kernel objects only.
func text(err error) string {
	if e, ok := errors.AsType[*fault.Error](err); ok {
		if e.Cause != nil && e.Kind != fault.Internal {
			return e.Text + " (" + errno(e.Cause) + ")"
		}
		return e.Text
	}
	return err.Error()
}

// refused reports that a driver can't do what it was asked, as opposed to "it went wrong this time".
// igb answers EPROTONOSUPPORT for 802.1ad, others EINVAL or EOPNOTSUPP.
func refused(err error) bool {
	return errors.Is(err, syscall.EINVAL) || errors.Is(err, syscall.EOPNOTSUPP) ||
		errors.Is(err, syscall.EPROTONOSUPPORT) || errors.Is(err, syscall.ERANGE)
}
