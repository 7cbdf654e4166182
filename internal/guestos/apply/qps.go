package apply

import (
	"context"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/verbena-cloud/verbena/internal/nlmsg"
)

// Of include/uapi/rdma/rdma_netlink.h.
const (
	nldevResGet = 5<<10 | 9 // RDMA_NL_NLDEV, RDMA_NLDEV_CMD_RES_GET

	attrName         = 2  // DEV_NAME
	attrSummary      = 15 // RES_SUMMARY
	attrSummaryEntry = 16 // RES_SUMMARY_ENTRY
	attrEntryName    = 17 // RES_SUMMARY_ENTRY_NAME
	attrEntryCurrent = 18 // RES_SUMMARY_ENTRY_CURR
)

// queuePairs asks the kernel how many queue pairs each RDMA device has, its own among them.
func queuePairs(context.Context) (map[string]int64, error) {
	list, err := nlmsg.Ask(nlmsg.Request{Protocol: unix.NETLINK_RDMA, Kind: nldevResGet, Dump: true})
	if err != nil {
		return nil, fmt.Errorf("ask for RDMA resources: %w", err)
	}
	out := map[string]int64{}
	for _, body := range list {
		name, count, ok, err := summary(body)
		if err != nil {
			return nil, fmt.Errorf("read RDMA resources: %w", err)
		}
		if ok {
			out[name] = count
		}
	}
	return out, nil
}

// summary reads one device's answer; ok is false where it tells no queue pairs.
func summary(body []byte) (name string, qps int64, ok bool, err error) {
	for a, err := range nlmsg.Attributes(body) {
		if err != nil {
			return "", 0, false, err
		}
		switch a.Kind {
		case attrName:
			name = a.Text()
		case attrSummary:
			if qps, ok, err = entries(a.Data); err != nil {
				return "", 0, false, err
			}
		}
	}
	return name, qps, ok && name != "", nil
}

func entries(table []byte) (qps int64, ok bool, err error) {
	for e, err := range nlmsg.Attributes(table) {
		if err != nil {
			return 0, false, err
		}
		if e.Kind != attrSummaryEntry {
			continue
		}
		kind, count := "", uint64(0)
		for a, err := range nlmsg.Attributes(e.Data) {
			if err != nil {
				return 0, false, err
			}
			switch a.Kind {
			case attrEntryName:
				kind = a.Text()
			case attrEntryCurrent:
				if count, err = a.Uint64(); err != nil {
					return 0, false, err
				}
			}
		}
		if kind == "qp" && count < 1<<32 {
			qps, ok = int64(count), true
		}
	}
	return qps, ok, nil
}
