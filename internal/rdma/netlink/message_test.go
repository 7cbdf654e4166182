package netlink

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/verbena-cloud/verbena/internal/nlmsg"
	"github.com/verbena-cloud/verbena/internal/rdma"
)

// The messages in these tests are constructed after drivers/infiniband/core/nldev.c (fill_dev_info,
// fill_port_info, fill_res_info, fill_res_qp_entry, stat_get_doit_default_counter), not captured. Names of
// counters are the drivers' own; values are made up.

// unhex reads bytes in groups, with comments to the end of a line.
func unhex(text string) []byte {
	var s strings.Builder
	for line := range strings.Lines(text) {
		line, _, _ = strings.Cut(line, "#")
		s.WriteString(strings.Join(strings.Fields(line), ""))
	}
	b, err := hex.DecodeString(s.String())
	if err != nil {
		panic(err)
	}
	return b
}

func littleEndian(t *testing.T) {
	t.Helper()
	if binary.NativeEndian.Uint16([]byte{1, 0}) != 1 {
		t.Skip("the bytes are those of a little-endian machine")
	}
}

const goldenHandle = `
	0800 0100 02000000                          # DEV_INDEX 2
	0b00 0200 6d6c78355f3000 00                 # DEV_NAME "mlx5_0"
`

const goldenDevice = goldenHandle + `
	0800 0300 01000000                          # PORT_INDEX: one port
	0400 0000                                   # PAD
	0c00 0400 361c05e125000000                  # CAP_FLAGS
	0f00 0500 32322e33312e3130313400 00         # FW_VERSION "22.31.1014"
	0c00 0600 f01e9a0003d23fb8                  # NODE_GUID, host byte order
	0c00 0700 f01e9a0003d23fb8                  # SYS_IMAGE_GUID
	0500 0e00 01 000000                         # DEV_NODE_TYPE
	0500 5400 01 000000                         # DEV_DIM, of newer kernels
	0900 4300 726f636500 000000                 # DEV_PROTOCOL "roce"
`

const goldenPort = goldenHandle + `
	0800 0300 01000000                          # PORT_INDEX
	0500 0c00 04 000000                         # PORT_STATE
	0500 0d00 05 000000                         # PORT_PHYS_STATE
	0800 3200 07000000                          # NDEV_INDEX
	0b00 3300 656e7331663000 00                 # NDEV_NAME "ens1f0"
`

const goldenSummary = goldenHandle + `
	3800 0f80                                   # RES_SUMMARY, nested
		1800 1080                           #   RES_SUMMARY_ENTRY
			0700 1100 706400 00         #     NAME "pd"
			0c00 1200 0500000000000000  #     CURR 5
		1c00 1080
			0a00 1100 636d5f696400 0000 #     NAME "cm_id"
			0c00 1200 0000000001000000
`

const goldenPairs = goldenHandle + `
	7000 1380                                   # RES_QP
		4400 1480                           #   RES_QP_ENTRY of a process
			0800 0300 01000000          #     PORT_INDEX
			0800 1500 86010000          #     LQPN 0x186
			0800 1600 87010000          #     RQPN
			0800 1700 01000000          #     RQ_PSN
			0800 1800 02000000          #     SQ_PSN
			0500 1a00 02 000000         #     TYPE RC
			0500 1b00 03 000000         #     STATE RTS
			0800 1c00 d2040000          #     PID 1234
		2800 1480                           #   of the kernel, without a port yet
			0800 1500 01000000
			0500 1a00 01 000000         #     GSI
			0500 1b00 00 000000         #     RESET
			0c00 1d00 69625f636f726500  #     KERN_NAME "ib_core"
`

const goldenCounters = goldenHandle + `
	0800 0300 01000000
	4c00 5080                                   # STAT_HWCOUNTERS
		2800 5180                           #   STAT_HWCOUNTER_ENTRY
			1600 5200 726e725f6e616b5f72657472795f65727200 0000 # NAME "rnr_nak_retry_err"
			0c00 5300 0900000000000000                          # VALUE
		2000 5180
			1000 5200 6f75745f6f665f6275667300           # a name of a newer driver
			0c00 5300 ffffffffffffffff
`

func mlx5() rdma.ID { return rdma.ID{Index: 2, Name: "mlx5_0"} }

func TestGolden(t *testing.T) {
	littleEndian(t)
	dev, err := decodeDevice(unhex(goldenDevice))
	want := rdma.Device{ID: mlx5(), Firmware: "22.31.1014", NodeGUID: 0xb83fd203009a1ef0, ImageGUID: 0xb83fd203009a1ef0, Type: rdma.ChannelAdapter, Protocol: "roce", Ports: 1, Caps: 0x25e1051c36}
	if diff := cmp.Diff(want, dev); err != nil || diff != "" {
		t.Errorf("device: %v\n%s", err, diff)
	}
	id, port, err := decodePort(unhex(goldenPort))
	if diff := cmp.Diff(rdma.Port{Number: 1, State: rdma.Active, Phys: rdma.LinkUp, LinkIndex: 7, Link: "ens1f0"}, port); err != nil || diff != "" || id != mlx5() {
		t.Errorf("port: %v\n%s", err, diff)
	}
	id, sum, err := decodeSummary(unhex(goldenSummary))
	if diff := cmp.Diff(map[string]uint64{"pd": 5, "cm_id": 1 << 32}, sum); err != nil || diff != "" || id != mlx5() {
		t.Errorf("summary: %v\n%s", err, diff)
	}
	id, qps, err := decodeQueuePairs(unhex(goldenPairs))
	wantPairs := []rdma.QP{
		{Local: 0x186, Remote: new(uint32(0x187)), Port: 1, Type: rdma.RC, State: rdma.ReadyToSend, PID: 1234},
		{Local: 1, Type: 1, State: rdma.Reset, Program: "ib_core"},
	}
	if diff := cmp.Diff(wantPairs, qps); err != nil || diff != "" || id != mlx5() {
		t.Errorf("queue pairs: %v\n%s", err, diff)
	}
	if n := countQueuePairs(unhex(goldenPairs)); n != 2 || countQueuePairs(unhex(goldenDevice)) != 0 {
		t.Errorf("%d queue pairs counted", n)
	}
	id, cs, err := decodeCounters(unhex(goldenCounters))
	if diff := cmp.Diff(map[string]uint64{"rnr_nak_retry_err": 9, "out_of_bufs": 1<<64 - 1}, cs); err != nil || diff != "" || id != mlx5() {
		t.Errorf("counters: %v\n%s", err, diff)
	}
	s, told, err := decodeSharing(unhex("0500 4200 01 000000 0500 5d00 01 000000"))
	if s != rdma.Shared || !told || err != nil {
		t.Errorf("sharing: %v %v %v", s, told, err)
	}
	if kind(cmdGet) != 0x1401 || kind(cmdCounters) != 0x1411 {
		t.Errorf("types: %#x %#x", kind(cmdGet), kind(cmdCounters))
	}
}

func number(b []byte, kind uint16, v uint64) []byte {
	return nlmsg.Append(b, kind, binary.NativeEndian.AppendUint64(nil, v))
}

func named(index uint32, name string) []byte {
	return nlmsg.AppendString(nlmsg.AppendUint32(nil, attrIndex, index), attrName, name)
}

// table builds nested entries of names and numbers.
func table(kind, entry, name, count uint16, values map[string]uint64) []byte {
	var list []byte
	for k, v := range values {
		list = nlmsg.Append(list, entry|unix.NLA_F_NESTED, number(nlmsg.AppendString(nil, name, k), count, v))
	}
	return nlmsg.Append(nil, kind|unix.NLA_F_NESTED, list)
}

// counted is an answer with counters.
func counted(name string, values map[string]uint64) []byte {
	b := nlmsg.AppendUint32(named(2, name), attrPort, 1)
	return append(b, table(attrCounters, attrCountEntry, attrCountName, attrCountNumber, values)...)
}

// device is an answer about a device of each driver; rxe has no firmware, and older kernels tell no protocol.
func device(name, firmware, protocol string, kind byte) []byte {
	b := number(nlmsg.AppendUint32(named(2, name), attrPort, 1), attrCaps, 0x1)
	if firmware != "" {
		b = nlmsg.AppendString(b, attrFirmware, firmware)
	}
	b = nlmsg.Append(number(number(b, attrNodeGUID, 5), attrImageGUID, 6), attrNodeType, []byte{kind})
	if protocol != "" {
		b = nlmsg.AppendString(b, attrProtocol, protocol)
	}
	return b
}

// TestDrivers: the shapes that drivers give their answers. igb has no RDMA device at all.
func TestDrivers(t *testing.T) {
	for _, c := range []struct {
		name, firmware, protocol string
		node                     byte
		layer                    string
		counters                 map[string]uint64
	}{
		{"mlx5_0", "22.31.1014", "roce", 1, "Ethernet", map[string]uint64{"out_of_sequence": 7, "np_cnp_sent": 1 << 40, "roce_slow_restart_cnps": 0}},
		{"bnxt_re0", "231.0.153.0", "roce", 1, "Ethernet", map[string]uint64{"to_retransmits": 1, "rx_cnp_pkts": 2, "oos_drop_count": 3}},
		{"rocep59s0", "1.70", "roce", 1, "Ethernet", map[string]uint64{"RNR sent": 1, "cnpHandled": 2, "RetransSegs": 3}}, // irdma
		{"iwp59s0", "1.70", "iw", 4, "Ethernet", map[string]uint64{"ip4OutOctets": 4}},                                    // irdma as iWARP
		{"rxe0", "", "roce", 1, "Ethernet", map[string]uint64{"sent_pkts": 1, "rcvd_pkts": 2, "link_downed": 0}},
		{"mlx5_1", "22.31.1014", "ib", 1, "InfiniBand", nil},
		{"mlx5_2", "16.28.2006", "", 1, "", nil}, // Linux 5.0
	} {
		d, err := decodeDevice(device(c.name, c.firmware, c.protocol, c.node))
		if err != nil || d.Name != c.name || d.Firmware != c.firmware || d.LinkLayer() != c.layer || d.Ports != 1 || d.NodeGUID != 5 || d.ImageGUID != 6 || d.Type != rdma.NodeType(c.node) {
			t.Errorf("%s: %+v, %v", c.name, d, err)
		}
		_, got, err := decodeCounters(counted(c.name, c.counters))
		if len(c.counters) == 0 {
			c.counters = map[string]uint64{}
		}
		if diff := cmp.Diff(c.counters, got); err != nil || diff != "" {
			t.Errorf("%s: %v\n%s", c.name, err, diff)
		}
	}
	ib := number(nlmsg.AppendUint32(named(2, "mlx5_1"), attrPort, 1), attrCaps, 0x2259e84c)
	if _, p, err := decodePort(ib); err != nil || p.Caps == nil || *p.Caps != 0x2259e84c || p.Link != "" {
		t.Errorf("an InfiniBand port: %+v, %v", p, err)
	}
}

// TestMalformed: answers that contradict themselves, and all that end early.
func TestMalformed(t *testing.T) {
	littleEndian(t)
	for what, b := range map[string]string{
		"no name":               "0800 0100 02000000",
		"a short index":         "0500 0100 02 000000",
		"a length past the end": "ff00 0100",
		"a short state":         goldenHandle + "0400 0c00",
	} {
		if _, _, err := decodePort(unhex(b)); !errors.Is(err, nlmsg.ErrMalformed) {
			t.Errorf("%s: %v", what, err)
		}
	}
	for what, list := range map[string][]byte{
		"an entry without a name":   number(nil, attrCountNumber, 1),
		"an entry without a number": nlmsg.AppendString(nil, attrCountName, "x"),
		"a short number":            nlmsg.Append(nlmsg.AppendString(nil, attrCountName, "x"), attrCountNumber, []byte{1}),
	} {
		b := nlmsg.Append(named(2, "x"), attrCounters, nlmsg.Append(nil, attrCountEntry, list))
		if _, _, err := decodeCounters(b); !errors.Is(err, nlmsg.ErrMalformed) {
			t.Errorf("%s: %v", what, err)
		}
	}
	if _, told, err := decodeSharing(unhex("0500 5d00 01 000000")); told || err != nil {
		t.Errorf("a kernel that does not tell: %v %v", told, err)
	}
	for _, whole := range []string{goldenDevice, goldenPort, goldenSummary, goldenPairs, goldenCounters} {
		b := unhex(whole)
		for n := range b {
			if err := all(b[:n]); err != nil && !errors.Is(err, nlmsg.ErrMalformed) {
				t.Fatalf("%d bytes of %x: %v", n, b, err)
			}
		}
	}
}

// all runs every decoder and returns the first error that is not of malformed bytes, or any.
func all(b []byte) error {
	_, err1 := decodeDevice(b)
	_, _, err2 := decodePort(b)
	_, _, err3 := decodeSummary(b)
	_, _, err4 := decodeQueuePairs(b)
	_, _, err5 := decodeCounters(b)
	_, _, err6 := decodeSharing(b)
	var torn error
	for _, err := range []error{err1, err2, err3, err4, err5, err6} {
		if err != nil && !errors.Is(err, nlmsg.ErrMalformed) {
			return err
		}
		if err != nil {
			torn = err
		}
	}
	return torn
}

func FuzzDecode(f *testing.F) {
	for _, s := range []string{goldenDevice, goldenPort, goldenSummary, goldenPairs, goldenCounters, "0500 4200 01 000000"} {
		f.Add(unhex(s))
	}
	f.Fuzz(func(t *testing.T, b []byte) {
		if err := all(b); err != nil && !errors.Is(err, nlmsg.ErrMalformed) {
			t.Fatal(err)
		}
		_, qps, err := decodeQueuePairs(b)
		if n := countQueuePairs(b); err == nil && n != len(qps) || n < len(qps) {
			t.Fatalf("%d queue pairs counted, %d read", n, len(qps))
		}
		_, sum, _ := decodeSummary(b)
		_, counters, _ := decodeCounters(b)
		if 4*len(qps) > len(b) || 8*(len(sum)+len(counters)) > len(b) {
			t.Fatalf("%d, %d and %d entries out of %d bytes", len(qps), len(sum), len(counters), len(b))
		}
	})
}
