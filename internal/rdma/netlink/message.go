package netlink

import (
	"fmt"

	"github.com/verbena-cloud/verbena/internal/nlmsg"
	"github.com/verbena-cloud/verbena/internal/rdma"
	"github.com/verbena-cloud/verbena/internal/roce"
)

// Commands (enum rdma_nldev_command).
const (
	client = 5 // RDMA_NL_NLDEV

	cmdGet      = 1
	cmdPortGet  = 5
	cmdSysGet   = 6
	cmdResGet   = 9
	cmdQPGet    = 10
	cmdCounters = 17 // RDMA_NLDEV_CMD_STAT_GET
)

// Attributes (enum rdma_nldev_attr).
const (
	attrIndex       = 1
	attrName        = 2
	attrPort        = 3 // of a device: how many there are
	attrCaps        = 4
	attrFirmware    = 5
	attrNodeGUID    = 6
	attrImageGUID   = 7
	attrState       = 12
	attrPhys        = 13
	attrNodeType    = 14
	attrSummary     = 15
	attrSumEntry    = 16
	attrSumName     = 17
	attrSumCount    = 18
	attrQPTable     = 19
	attrQPEntry     = 20
	attrLocal       = 21
	attrRemote      = 22
	attrQPType      = 26
	attrQPState     = 27
	attrPID         = 28
	attrKernelName  = 29
	attrLinkIndex   = 50
	attrLinkName    = 51
	attrSharing     = 66
	attrProtocol    = 67
	attrCounters    = 80
	attrCountEntry  = 81
	attrCountName   = 82
	attrCountNumber = 83
)

// kind is the nlmsg_type of a command (RDMA_NL_GET_TYPE).
func kind(cmd uint16) uint16 { return client<<10 | cmd }

// each walks attributes until f fails.
func each(b []byte, f func(nlmsg.Attribute) error) error {
	for a, err := range nlmsg.Attributes(b) {
		if err == nil {
			err = f(a)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// set reads a number into a field of any integer type.
func set[T ~int | ~uint8 | ~uint32 | ~uint64, V uint8 | uint32 | uint64](to *T, read func() (V, error)) error {
	v, err := read()
	*to = T(v)
	return err
}

// take notes an attribute if it is part of a device's handle.
func take(d *rdma.ID, a nlmsg.Attribute) error {
	switch a.Kind {
	case attrIndex:
		return set(&d.Index, a.Uint32)
	case attrName:
		d.Name = a.Text()
	}
	return nil
}

// walk reads an answer about one device.
func walk(body []byte, d *rdma.ID, f func(nlmsg.Attribute) error) error {
	err := each(body, func(a nlmsg.Attribute) error {
		if err := take(d, a); err != nil {
			return err
		}
		return f(a)
	})
	if err == nil && d.Name == "" {
		err = fmt.Errorf("%w: a device without a name", nlmsg.ErrMalformed)
	}
	return err
}

// decodeDevice reads an answer to RDMA_NLDEV_CMD_GET.
func decodeDevice(body []byte) (rdma.Device, error) {
	var d rdma.Device
	err := walk(body, &d.ID, func(a nlmsg.Attribute) error {
		switch a.Kind {
		case attrPort:
			return set(&d.Ports, a.Uint32)
		case attrCaps:
			return set(&d.Caps, a.Uint64)
		case attrFirmware:
			d.Firmware = a.Text()
		case attrNodeGUID:
			return guid(&d.NodeGUID, a)
		case attrImageGUID:
			return guid(&d.ImageGUID, a)
		case attrNodeType:
			return set(&d.Type, a.Uint8)
		case attrProtocol:
			d.Protocol = a.Text()
		}
		return nil
	})
	return d, err
}

// guid reads a GUID, which the kernel gives in host byte order.
func guid(to *roce.GUID, a nlmsg.Attribute) error { return set(to, a.Uint64) }

// decodePort reads an answer to RDMA_NLDEV_CMD_PORT_GET.
func decodePort(body []byte) (d rdma.ID, p rdma.Port, err error) {
	err = walk(body, &d, func(a nlmsg.Attribute) error {
		switch a.Kind {
		case attrPort:
			return set(&p.Number, a.Uint32)
		case attrCaps:
			p.Caps = new(uint64)
			return set(p.Caps, a.Uint64)
		case attrState:
			return set(&p.State, a.Uint8)
		case attrPhys:
			return set(&p.Phys, a.Uint8)
		case attrLinkIndex:
			return set(&p.LinkIndex, a.Uint32)
		case attrLinkName:
			p.Link = a.Text()
		}
		return nil
	})
	return d, p, err
}

// decodePairs reads a table of names and numbers: what is allocated, and counters.
func decodePairs(b []byte, entry, name, number uint16) (map[string]uint64, error) {
	out := map[string]uint64{}
	err := each(b, func(a nlmsg.Attribute) error {
		if a.Kind != entry {
			return nil
		}
		var key string
		var n uint64
		told := false
		err := each(a.Data, func(a nlmsg.Attribute) error {
			switch a.Kind {
			case name:
				key = a.Text()
			case number:
				told = true
				return set(&n, a.Uint64)
			}
			return nil
		})
		if err != nil {
			return err
		}
		if key == "" || !told {
			return fmt.Errorf("%w: an entry without a name or a number", nlmsg.ErrMalformed)
		}
		out[key] = n
		return nil
	})
	return out, err
}

// decodeTable reads an answer that holds one table of names and numbers.
func decodeTable(table, entry, name, number uint16) func([]byte) (rdma.ID, map[string]uint64, error) {
	return func(body []byte) (d rdma.ID, out map[string]uint64, err error) {
		out = map[string]uint64{}
		err = walk(body, &d, func(a nlmsg.Attribute) (err error) {
			if a.Kind == table {
				out, err = decodePairs(a.Data, entry, name, number)
			}
			return err
		})
		return d, out, err
	}
}

// decodeSummary reads an answer to RDMA_NLDEV_CMD_RES_GET.
func decodeSummary(body []byte) (rdma.ID, map[string]uint64, error) {
	return decodeTable(attrSummary, attrSumEntry, attrSumName, attrSumCount)(body)
}

// decodeCounters reads an answer to RDMA_NLDEV_CMD_STAT_GET.
func decodeCounters(body []byte) (rdma.ID, map[string]uint64, error) {
	return decodeTable(attrCounters, attrCountEntry, attrCountName, attrCountNumber)(body)
}

// decodeQueuePairs reads one message of the answer to RDMA_NLDEV_CMD_RES_QP_GET: a device and a part of its table.
func decodeQueuePairs(body []byte) (d rdma.ID, out []rdma.QP, err error) {
	err = walk(body, &d, func(a nlmsg.Attribute) error {
		if a.Kind != attrQPTable {
			return nil
		}
		return each(a.Data, func(a nlmsg.Attribute) error {
			if a.Kind != attrQPEntry {
				return nil
			}
			q, err := decodeQP(a.Data)
			out = append(out, q)
			return err
		})
	})
	return d, out, err
}

// countQueuePairs is how many queue pairs a message tells of, as far as it can be read.
func countQueuePairs(body []byte) (n int) {
	for a, err := range nlmsg.Attributes(body) {
		if err != nil || a.Kind != attrQPTable {
			continue
		}
		for e, err := range nlmsg.Attributes(a.Data) {
			if err == nil && e.Kind == attrQPEntry {
				n++
			}
		}
	}
	return n
}

func decodeQP(b []byte) (rdma.QP, error) {
	var q rdma.QP
	err := each(b, func(a nlmsg.Attribute) error {
		switch a.Kind {
		case attrPort:
			return set(&q.Port, a.Uint32)
		case attrLocal:
			return set(&q.Local, a.Uint32)
		case attrRemote:
			q.Remote = new(uint32)
			return set(q.Remote, a.Uint32)
		case attrQPType:
			return set(&q.Type, a.Uint8)
		case attrQPState:
			return set(&q.State, a.Uint8)
		case attrPID:
			return set(&q.PID, a.Uint32)
		case attrKernelName:
			q.Program = a.Text()
		}
		return nil
	})
	return q, err
}

// decodeSharing reads an answer to RDMA_NLDEV_CMD_SYS_GET; told is false where it does not hold the mode.
func decodeSharing(body []byte) (s rdma.Sharing, told bool, err error) {
	err = each(body, func(a nlmsg.Attribute) error {
		if a.Kind != attrSharing {
			return nil
		}
		told = true
		return set(&s, a.Uint8)
	})
	return s, told, err
}
