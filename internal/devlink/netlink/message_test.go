package netlink

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/verbena-cloud/verbena/internal/devlink"
	"github.com/verbena-cloud/verbena/internal/nlmsg"
)

// The messages in these tests are constructed after net/devlink/dev.c (devlink_nl_info_fill,
// devlink_nl_eswitch_fill) and the drivers' info_get, not captured: names of versions are the drivers'
// (Documentation/networking/devlink), values are made up.

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

const goldenInfo = `
	33 01 0000                                          # DEVLINK_CMD_INFO_GET, version 1
	0800 0100 70636900                                  # BUS_NAME "pci"
	1100 0200 303030303a33623a30302e3000 000000         # DEV_NAME "0000:3b:00.0"
	2c00 6400                                           # INFO_VERSION_FIXED, without NLA_F_NESTED
		0c00 6700 66772e7073696400                  #   NAME "fw.psid"
		1200 6800 4d545f3030303030303033353900 0000 #   VALUE "MT_0000000359" and padding
		0800 ff03 00000000                          #   of a newer kernel
	1c00 6580                                           # INFO_VERSION_RUNNING, with NLA_F_NESTED
		0700 6700 667700 00                         #   NAME "fw"
		0f00 6800 32322e33312e31303134 00 00        #   VALUE "22.31.1014"
	0e00 6200 6d6c78355f636f7265 00 0000                # INFO_DRIVER_NAME "mlx5_core"
`

func TestGoldenInfo(t *testing.T) {
	littleEndian(t)
	d, i, err := decodeInfo(unhex(goldenInfo))
	if err != nil {
		t.Fatal(err)
	}
	want := devlink.Info{Driver: "mlx5_core", Fixed: map[string]string{"fw.psid": "MT_0000000359"}, Running: map[string]string{"fw": "22.31.1014"}}
	if diff := cmp.Diff(want, i); diff != "" || d != devlink.PCI("0000:3b:00.0") {
		t.Errorf("%s\n%s", d, diff)
	}
}

// info builds an answer of a driver from "kind name value" triples.
func info(d devlink.Device, driver string, versions ...string) []byte {
	b := append(request(cmdInfoGet, familyVersion, nil), handle(d)...)
	for _, v := range versions {
		w := strings.SplitN(v, " ", 3)
		kind := map[string]uint16{"fixed": attrFixed, "running": attrRunning, "stored": attrStored, "serial": attrSerial, "board": attrBoardSerial}[w[0]]
		if kind == attrSerial || kind == attrBoardSerial {
			b = nlmsg.AppendString(b, kind, w[1])
			continue
		}
		b = nlmsg.Append(b, kind, nlmsg.AppendString(nlmsg.AppendString(nil, attrVersionName, w[1]), attrVersionValue, w[2]))
	}
	return nlmsg.AppendString(b, attrDriver, driver)
}

// drivers are answers as each driver gives them.
func drivers() map[string][]byte {
	d := devlink.PCI("0000:3b:00.0")
	return map[string][]byte{
		"mlx5_core": info(d, "mlx5_core", "fixed fw.psid MT_0000000359", "running fw.version 22.31.1014", "running fw 22.31.1014", "stored fw.version 22.35.1012", "stored fw 22.35.1012"),
		"bnxt_en": info(d, "bnxt_en", "serial B0-26-28-FF-FE-12-34-56", "board P2100G12345", "fixed board.id BCM957508", "fixed asic.id 1750", "fixed asic.rev 1",
			"running drv.spec 1.10.3", "running hwrm.spec 1.10.3", "running fw 231.0.153.0", "running fw.mgmt 231.0.153.0", "running fw.mgmt.api 1.10.3", "running fw.roce 231.0.153.0", "stored fw 231.0.153.0"),
		"ice": info(d, "ice", "serial 00-01-00-ff-ff-00-00-00", "fixed board.id K65390-000", "running fw.mgmt 7.2.9", "running fw.mgmt.api 1.7.11", "running fw.mgmt.build 0x5c1b2f3a",
			"running fw.undi 1.3429.0", "running fw.psid.api 4.20", "running fw.bundle_id 0x80017784", "running fw.app.name ICE OS Default Package", "running fw.app 1.3.30.0", "stored fw.bundle_id 0x8001c967"),
	}
}

func TestDrivers(t *testing.T) {
	for driver, want := range map[string]struct{ firmware, board, pending string }{
		"mlx5_core": {"22.31.1014", "MT_0000000359", "fw"},
		"bnxt_en":   {"231.0.153.0", "BCM957508", ""},
		"ice":       {"7.2.9", "K65390-000", "fw.bundle_id"},
	} {
		_, i, err := decodeInfo(drivers()[driver])
		if err != nil {
			t.Fatal(err)
		}
		pending := ""
		if p := i.Pending(); len(p) > 0 {
			pending = p[0].Name
		}
		if i.Driver != driver || i.Firmware() != want.firmware || i.Board() != want.board || pending != want.pending {
			t.Errorf("%s: %+v", driver, i)
		}
	}
	_, bnxt, _ := decodeInfo(drivers()["bnxt_en"])
	if bnxt.Serial != "B0-26-28-FF-FE-12-34-56" || bnxt.BoardSerial != "P2100G12345" {
		t.Errorf("%+v", bnxt)
	}
	_, ice, _ := decodeInfo(drivers()["ice"])
	if ice.Running["fw.app.name"] != "ICE OS Default Package" {
		t.Errorf("%+v", ice)
	}
}

func TestGoldenEswitch(t *testing.T) {
	littleEndian(t)
	const head = "1d 01 0000 0800 0100 70636900 1100 0200 303030303a33623a30302e3000 000000 "
	mode, inline := devlink.Switchdev, devlink.InlineTransport
	for what, c := range map[string]struct {
		bytes string
		want  devlink.Eswitch
	}{
		"mlx5":   {"0600 1900 0100 0000  0500 1a00 03 000000  0500 3e00 01 000000", devlink.Eswitch{Mode: &mode, Inline: &inline, Encap: new(true)}},
		"legacy": {"0600 1900 0000 0000", devlink.Eswitch{Mode: new(devlink.Legacy)}},
		"none":   {"", devlink.Eswitch{}},
	} {
		d, got, err := decodeEswitch(unhex(head + c.bytes))
		if diff := cmp.Diff(c.want, got); err != nil || diff != "" || d != devlink.PCI("0000:3b:00.0") {
			t.Errorf("%s: %v\n%s", what, err, diff)
		}
	}
}

func TestGoldenFamily(t *testing.T) {
	littleEndian(t)
	// CTRL_CMD_NEWFAMILY: name, id 0x15, version, header size, largest attribute.
	b := unhex("01 02 0000  0c00 0200 6465766c696e6b00  0600 0100 1500 0000  0800 0300 01000000  0800 0400 00000000  0800 0500 b4000000")
	if id, err := decodeFamily(b); id != 0x15 || err != nil {
		t.Errorf("%#x, %v", id, err)
	}
	if got := hex.EncodeToString(request(cmdGetFamily, ctrlVersion, nlmsg.AppendString(nil, ctrlName, familyName))); got != "03020000"+"0c000200"+"6465766c696e6b00" {
		t.Errorf("request: %s", got)
	}
	for _, bad := range []string{"", "01", "01 02 0000", "01 02 0000 0600 0100 1000 0000", "01 02 0000 0500 0100 15 000000"} {
		if _, err := decodeFamily(unhex(bad)); !errors.Is(err, nlmsg.ErrMalformed) {
			t.Errorf("%s: %v", bad, err)
		}
	}
}

// TestCut: an answer that ends early is malformed, or tells less.
func TestCut(t *testing.T) {
	for driver, whole := range drivers() {
		_, full, _ := decodeInfo(whole)
		for n := range whole {
			_, i, err := decodeInfo(whole[:n])
			if err != nil && !errors.Is(err, nlmsg.ErrMalformed) {
				t.Fatal(err)
			}
			if len(i.Running) > len(full.Running) {
				t.Errorf("%s: %d bytes tell more than all", driver, n)
			}
		}
	}
	d := devlink.PCI("0000:3b:00.0")
	nameless := nlmsg.Append(info(d, "x"), attrStored, nlmsg.AppendString(nil, attrVersionValue, "1"))
	if _, _, err := decodeInfo(nameless); !errors.Is(err, nlmsg.ErrMalformed) {
		t.Errorf("a version without a name: %v", err)
	}
}

func FuzzDecode(f *testing.F) {
	for _, b := range drivers() {
		f.Add(b)
	}
	f.Add(unhex(goldenInfo))
	f.Add(nlmsg.Append(append(request(cmdEswitchGet, 1, nil), handle(devlink.PCI("0000:3b:00.0"))...), attrEswitchMode|unix.NLA_F_NET_BYTEORDER, []byte{1, 0}))
	f.Add(request(cmdGetFamily, ctrlVersion, nlmsg.AppendString(nil, ctrlName, familyName)))
	f.Fuzz(func(t *testing.T, b []byte) {
		d, i, err1 := decodeInfo(b)
		_, _, err2 := decodeEswitch(b)
		who, err3 := decodeDevice(b)
		_, err4 := decodeFamily(b)
		for _, err := range []error{err1, err2, err3, err4} {
			if err != nil && !errors.Is(err, nlmsg.ErrMalformed) {
				t.Fatal(err)
			}
		}
		if err1 == nil && (who != d || d.Bus == "" || 8*(len(i.Fixed)+len(i.Running)+len(i.Stored)) > len(b)) {
			t.Fatalf("%+v of %s out of %d bytes", i, d, len(b))
		}
	})
}
