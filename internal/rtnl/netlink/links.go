package netlink

import (
	"context"
	"errors"
	"fmt"
	"math"
	"strings"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/verbena-cloud/verbena/internal/rtnl"
	"github.com/verbena-cloud/verbena/internal/sysfs"
)

// Links is the host's rtnetlink. The zero Links is ready to use.
type Links struct {
	guard sysfs.Guard
}

var _ rtnl.Links = (*Links)(nil)

// VFs returns the VFs of a PF's link by index. A VF that the driver can't describe is not among them.
func (l *Links) VFs(ctx context.Context, link string) ([]rtnl.VF, error) {
	info, size, err := l.get(ctx, link, filterVF|filterSkipStats)
	if err == nil {
		err = whole(info, size)
	}
	if err != nil {
		return nil, fmt.Errorf("read the VFs of %s: %w", link, err)
	}
	return info.vfs, nil
}

// whole says whether an answer of this size tells of all the VFs that there are.
func whole(info linkInfo, size int) error {
	if len(info.vfs) < info.count && size > math.MaxUint16 {
		return fmt.Errorf("the kernel can't tell of %d VFs in one message, only %d could be read; use fewer VFs on this PF: %w", info.count, len(info.vfs), syscall.EMSGSIZE)
	}
	return nil
}

// PermanentMAC returns the address that is burnt into the link's card, also while another is set
// (IFLA_PERM_ADDRESS, Linux 5.6).
func (l *Links) PermanentMAC(ctx context.Context, link string) (string, error) {
	info, _, err := l.get(ctx, link, filterSkipStats)
	if err == nil && !info.hasMAC {
		err = syscall.EOPNOTSUPP
	}
	if err != nil {
		return "", fmt.Errorf("permanent address of %s: %w", link, err)
	}
	return info.permanent.String(), nil
}

// get asks for one link. size is that of the whole answer.
func (l *Links) get(ctx context.Context, link string, filter uint32) (linkInfo, int, error) {
	type answer struct {
		info linkInfo
		size int
	}
	a, err := call(ctx, l, "read", link, func() (a answer, err error) {
		req := request(unix.RTM_GETLINK, unix.NLM_F_ACK, link, linkFlags{}, attr(nil, unix.IFLA_EXT_MASK, words(filter)))
		err = ask(req, func(m message) (err error) {
			if m.kind == unix.RTM_NEWLINK {
				a.size = len(m.data)
				a.info, err = decodeLink(m.data)
			}
			return err
		})
		return a, err
	})
	return a.info, a.size, err
}

// SetVF sets one attribute of one VF, in a request of its own.
func (l *Links) SetVF(ctx context.Context, link string, vf int, a rtnl.Attr) error {
	_, err := call(ctx, l, "set", link, func() (struct{}, error) { return struct{}{}, setVF(link, vf, a) })
	if err != nil {
		return fmt.Errorf("set %s on VF %d of %s: %w", a, vf, link, err)
	}
	return nil
}

func setVF(link string, vf int, a rtnl.Attr) error {
	if vf < 0 || vf >= maxVF {
		return syscall.EINVAL
	}
	info, err := encodeVF(vf, a)
	if err != nil {
		return err
	}
	err = change(link, info)
	if r, ok := a.(rtnl.Rate); ok && r.Min == 0 && errors.Is(err, syscall.EOPNOTSUPP) {
		return change(link, encodeTxRate(vf, r.Max))
	}
	return err
}

func change(link string, attrs []byte) error {
	return ask(request(unix.RTM_SETLINK, unix.NLM_F_ACK, link, linkFlags{}, attrs), func(message) error { return nil })
}

// SetUp sets the link administratively up.
func (l *Links) SetUp(ctx context.Context, link string) error {
	_, err := call(ctx, l, "set up", link, func() (struct{}, error) {
		req := request(unix.RTM_SETLINK, unix.NLM_F_ACK, link, linkFlags{unix.IFF_UP, unix.IFF_UP}, nil)
		return struct{}{}, ask(req, func(message) error { return nil })
	})
	if err != nil {
		return fmt.Errorf("set %s up: %w", link, err)
	}
	return nil
}

// call makes one guarded call on a link.
func call[T any](ctx context.Context, l *Links, op, link string, f func() (T, error)) (T, error) {
	if link == "" || len(link) >= unix.IFNAMSIZ || strings.ContainsAny(link, "/\x00") {
		var none T
		return none, syscall.ENODEV
	}
	return sysfs.Guarded(ctx, &l.guard, op, "link "+link, f)
}

// Stuck returns the links with a call that has outlived its caller.
func (l *Links) Stuck() []string { return l.guard.Stuck() }
