package guest

import "strings"

// Tool is the file of the program for the guest, in the seed and below /usr/local/sbin.
const Tool = "verbena-guest"

// Label is the seed's volume label, by which cloud-init and the installer find it.
const Label = "cidata"

// boundary stands in neither part: both are made here, and a tenant's names go through JSON.
const boundary = "=_verbena_part_="

// withInstaller adds the installer to cloud-config. It is a script part, since a list such as runcmd is
// replaced as a whole by a tenant's own, while vendor scripts run whatever user data says; vendor_data:
// {enabled: false} turns both off. cloud-init takes what has a MIME-Version for multipart.
func withInstaller(config []byte) []byte {
	var b strings.Builder
	b.WriteString("Content-Type: multipart/mixed; boundary=\"" + boundary + "\"\nMIME-Version: 1.0\n\n")
	for _, p := range []struct{ kind, text string }{{"cloud-config", string(config)}, {"x-shellscript", installer()}} {
		b.WriteString("--" + boundary + "\nContent-Type: text/" + p.kind + "; charset=\"utf-8\"\nMIME-Version: 1.0\n\n" + p.text + "\n")
	}
	b.WriteString("--" + boundary + "--\n")
	return []byte(b.String())
}

// installer copies the program from the seed and starts it at each boot. What fails of tuning must not keep the
// guest from reporting.
func installer() string {
	return `#!/bin/sh
# Installs ` + Tool + ` from the cloud-init seed: it sets the VM up for RDMA at each boot and reports to the host.
set -eu
bin=/usr/local/sbin/` + Tool + `
seed=$(mktemp -d)
trap 'umount "$seed" 2>/dev/null || true; rmdir "$seed"' EXIT
mount -o ro LABEL=` + Label + ` "$seed"
mkdir -p "${bin%/*}"
cp "$seed/` + Tool + `" "$bin.new"
chmod 0755 "$bin.new"
mv "$bin.new" "$bin"
if command -v restorecon >/dev/null; then restorecon "$bin"; fi
if [ ! -d /run/systemd/system ]; then
	"$bin" tune
	exit
fi
cat >/etc/systemd/system/` + Tool + `.service <<'UNIT'
[Unit]
Description=Set up RDMA devices and report to the host
After=network.target systemd-modules-load.service

[Service]
ExecStartPre=-/usr/local/sbin/` + Tool + ` tune
ExecStart=/usr/local/sbin/` + Tool + ` report --port /dev/virtio-ports/org.verbena.guest.0 --every 30s
Restart=always
RestartSec=10
StateDirectory=` + Tool + `
NoNewPrivileges=yes
ProtectHome=yes
PrivateTmp=yes

[Install]
WantedBy=multi-user.target
UNIT
systemctl daemon-reload
systemctl enable ` + Tool + `.service
systemctl --no-block restart ` + Tool + `.service
`
}
