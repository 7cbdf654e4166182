// Package guest makes what a VM's operating system is told at first boot: the files of a cloud-init NoCloud
// seed (https://docs.cloud-init.io/en/latest/reference/datasources/nocloud.html). It is pure; guest/seed
// packs the files into the ISO that the guest sees.
package guest

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/verbena-cloud/verbena/internal/fault"
	"github.com/verbena-cloud/verbena/internal/roce"
	"github.com/verbena-cloud/verbena/internal/wire"
)

// MaxUserData bounds the user data in bytes.
const MaxUserData = 64 << 10

// File is one file of the seed.
type File struct {
	Name string
	Data []byte
}

// encode writes JSON, which is YAML too, and whose quoting no tenant's text can break out of.
func encode(v any) ([]byte, error) {
	b, err := json.MarshalIndent(v, "", "  ")
	return append(b, '\n'), err
}

// Files returns the files of the seed. instance is cloud-init's instance-id: a new one makes the guest run its
// first-boot steps again, which a rebuild wants and a restart does not. tool is the program for the guest, put
// into seeds of VMs with RDMA; nil for none.
func Files(s wire.Seed, instance string, tool []byte) ([]File, error) {
	if err := check(s, instance); err != nil {
		return nil, err
	}
	meta, err := encode(metaData{InstanceID: instance, Hostname: s.Hostname, Keys: s.SSHKeys})
	if err != nil {
		return nil, fmt.Errorf("encode meta-data: %w", err)
	}
	network, err := encode(networkConfig(s.Interfaces))
	if err != nil {
		return nil, fmt.Errorf("encode network-config: %w", err)
	}
	if !hasRDMA(s.Interfaces) {
		tool = nil
	}
	vendor, err := vendorData(s.Interfaces)
	if err != nil {
		return nil, err
	}
	if tool != nil {
		vendor = withInstaller(vendor)
	}
	user := s.UserData
	if user == "" {
		user = "#cloud-config\n{}\n" // NoCloud needs the file; an empty one is logged as unknown
	}
	files := []File{
		{"meta-data", meta},
		{"user-data", []byte(user)},
		{"network-config", network},
		{"vendor-data", vendor},
	}
	if tool != nil {
		files = append(files, File{Tool, tool})
	}
	return files, nil
}

func hasRDMA(links []wire.SeedLink) bool {
	return slices.ContainsFunc(links, func(l wire.SeedLink) bool { return l.RDMA })
}

func check(s wire.Seed, instance string) error {
	var f fault.Faults
	if instance == "" || s.Hostname == "" {
		f.Add("seed", "an instance id and a host name are needed")
	}
	if len(s.UserData) > MaxUserData {
		f.Add("userData", "%d bytes are over the limit of %d", len(s.UserData), MaxUserData)
	}
	for i, l := range s.Interfaces {
		at := fmt.Sprintf("interfaces[%d]", i)
		if _, err := roce.ParseMAC(l.MAC); err != nil {
			f.Add(at+".mac", "%v", err)
		}
		if _, err := netip.ParsePrefix(l.Address); err != nil {
			f.Add(at+".address", "%q is no address with prefix length", l.Address)
		}
		if l.Gateway != "" {
			if _, err := netip.ParseAddr(l.Gateway); err != nil {
				f.Add(at+".gateway", "%q is no address", l.Gateway)
			}
		}
	}
	return f.Err("seed of " + s.Hostname)
}

type metaData struct {
	InstanceID string   `json:"instance-id"`
	Hostname   string   `json:"local-hostname"`
	Keys       []string `json:"public-keys,omitempty"`
}

// netplan is the version 2 network configuration.
type netplan struct {
	Version   int                 `json:"version"`
	Ethernets map[string]ethernet `json:"ethernets"`
}

type ethernet struct {
	Match       map[string]string `json:"match"`
	SetName     string            `json:"set-name"`
	DHCP        bool              `json:"dhcp4"`
	Addresses   []string          `json:"addresses"`
	MTU         int               `json:"mtu,omitempty"`
	Routes      []route           `json:"routes,omitempty"`
	Nameservers *nameservers      `json:"nameservers,omitempty"`
}

type route struct {
	To  string `json:"to"`
	Via string `json:"via"`
}

type nameservers struct {
	Addresses []string `json:"addresses"`
}

// networkConfig names interfaces by MAC, since names and PCI paths differ between guests. Only the first
// gateway becomes the default route: two would make replies leave by the wrong VF.
func networkConfig(links []wire.SeedLink) netplan {
	n := netplan{Version: 2, Ethernets: map[string]ethernet{}}
	routed := false
	for _, l := range links {
		e := ethernet{
			Match:     map[string]string{"macaddress": l.MAC},
			SetName:   l.Name,
			Addresses: []string{l.Address},
			MTU:       l.MTU,
		}
		if l.Gateway != "" && !routed {
			e.Routes = []route{{To: "0.0.0.0/0", Via: l.Gateway}}
			routed = true
		}
		if len(l.DNS) > 0 {
			e.Nameservers = &nameservers{Addresses: l.DNS}
		}
		n.Ethernets[l.Name] = e
	}
	return n
}

// writeFile is cloud-config's write_files entry.
type writeFile struct {
	Path        string `json:"path"`
	Permissions string `json:"permissions"`
	Content     string `json:"content"`
}

type vendorConfig struct {
	WriteFiles []writeFile `json:"write_files,omitempty"`
	RunCmd     [][]string  `json:"runcmd,omitempty"`
}

// vendorData prepares the guest for verbs: the user-space modules are loaded at each boot and locked memory
// is not limited, without which ibv_reg_mr fails for ordinary users. User data overrides it.
func vendorData(links []wire.SeedLink) ([]byte, error) {
	var rdma []string
	for _, l := range links {
		if l.RDMA {
			rdma = append(rdma, l.Name)
		}
	}
	var c vendorConfig
	if len(rdma) > 0 {
		c.WriteFiles = []writeFile{
			{"/etc/modules-load.d/verbena-rdma.conf", "0644", "ib_uverbs\nrdma_ucm\n"},
			{"/etc/security/limits.d/verbena-rdma.conf", "0644", "* soft memlock unlimited\n* hard memlock unlimited\n"},
			{"/etc/verbena/rdma-interfaces", "0644", strings.Join(rdma, "\n") + "\n"},
		}
		c.RunCmd = [][]string{{"modprobe", "-a", "ib_uverbs", "rdma_ucm"}}
	}
	b, err := encode(c)
	if err != nil {
		return nil, fmt.Errorf("encode vendor-data: %w", err)
	}
	return append([]byte("#cloud-config\n"), b...), nil
}
