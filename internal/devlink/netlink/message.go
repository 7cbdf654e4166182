package netlink

import (
	"fmt"

	"github.com/verbena-cloud/verbena/internal/devlink"
	"github.com/verbena-cloud/verbena/internal/nlmsg"
)

// Generic netlink (include/uapi/linux/genetlink.h).
const (
	headerSize = 4 // struct genlmsghdr: cmd, version, reserved

	controller    = 16 // GENL_ID_CTRL
	cmdGetFamily  = 3
	ctrlID        = 1
	ctrlName      = 2
	ctrlVersion   = 2 // of the controller's own messages
	familyName    = "devlink"
	familyVersion = 1
)

// Commands and attributes (include/uapi/linux/devlink.h).
const (
	cmdGet        = 1
	cmdEswitchGet = 29
	cmdInfoGet    = 51

	attrBus            = 1
	attrName           = 2
	attrEswitchMode    = 25
	attrEswitchInline  = 26
	attrEswitchEncap   = 62
	attrDriver         = 98
	attrSerial         = 99
	attrFixed          = 100
	attrRunning        = 101
	attrStored         = 102
	attrVersionName    = 103
	attrVersionValue   = 104
	attrBoardSerial    = 146
	encapModeBasic     = 1
	longestDeviceParts = 64
)

// request is the body of a generic netlink message.
func request(cmd, version uint8, attrs []byte) []byte {
	return append([]byte{cmd, version, 0, 0}, attrs...)
}

// handle are the attributes that name an instance.
func handle(d devlink.Device) []byte {
	return nlmsg.AppendString(nlmsg.AppendString(nil, attrBus, d.Bus), attrName, d.Name)
}

// each walks the attributes of an answer behind its header.
func each(body []byte, f func(nlmsg.Attribute) error) error {
	if len(body) < headerSize {
		return fmt.Errorf("%w: an answer of %d bytes", nlmsg.ErrMalformed, len(body))
	}
	for a, err := range nlmsg.Attributes(body[headerSize:]) {
		if err == nil {
			err = f(a)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// decodeFamily reads the number of the family out of the controller's answer (CTRL_CMD_NEWFAMILY).
func decodeFamily(body []byte) (id uint16, err error) {
	err = each(body, func(a nlmsg.Attribute) (err error) {
		if a.Kind == ctrlID {
			id, err = a.Uint16()
		}
		return err
	})
	if err == nil && id <= controller { // 16 and less are the controller's and netlink's own
		err = fmt.Errorf("%w: family number %d", nlmsg.ErrMalformed, id)
	}
	return id, err
}

// take notes an attribute if it is part of an instance's handle.
func take(d *devlink.Device, a nlmsg.Attribute) {
	switch a.Kind {
	case attrBus:
		d.Bus = a.Text()
	case attrName:
		d.Name = a.Text()
	}
}

func told(d devlink.Device) error {
	if d.Bus == "" || d.Name == "" {
		return fmt.Errorf("%w: an instance without a name", nlmsg.ErrMalformed)
	}
	return nil
}

// decodeDevice reads the handle of an answer to DEVLINK_CMD_GET.
func decodeDevice(body []byte) (d devlink.Device, err error) {
	err = each(body, func(a nlmsg.Attribute) error {
		take(&d, a)
		return nil
	})
	if err == nil {
		err = told(d)
	}
	return d, err
}

// decodeInfo reads an answer to DEVLINK_CMD_INFO_GET. Each version is an attribute of its own.
func decodeInfo(body []byte) (d devlink.Device, i devlink.Info, err error) {
	err = each(body, func(a nlmsg.Attribute) error {
		take(&d, a)
		switch a.Kind {
		case attrDriver:
			i.Driver = a.Text()
		case attrSerial:
			i.Serial = a.Text()
		case attrBoardSerial:
			i.BoardSerial = a.Text()
		case attrFixed:
			return version(&i.Fixed, a.Data)
		case attrRunning:
			return version(&i.Running, a.Data)
		case attrStored:
			return version(&i.Stored, a.Data)
		}
		return nil
	})
	if err == nil {
		err = told(d)
	}
	return d, i, err
}

// version reads a name and its value.
func version(into *map[string]string, b []byte) error {
	var name, value string
	for a, err := range nlmsg.Attributes(b) {
		if err != nil {
			return err
		}
		switch a.Kind {
		case attrVersionName:
			name = a.Text()
		case attrVersionValue:
			value = a.Text()
		}
	}
	if name == "" {
		return fmt.Errorf("%w: version %.20q without a name", nlmsg.ErrMalformed, value)
	}
	if *into == nil {
		*into = map[string]string{}
	}
	(*into)[name] = value
	return nil
}

// decodeEswitch reads an answer to DEVLINK_CMD_ESWITCH_GET.
func decodeEswitch(body []byte) (d devlink.Device, e devlink.Eswitch, err error) {
	err = each(body, func(a nlmsg.Attribute) error {
		take(&d, a)
		switch a.Kind {
		case attrEswitchMode:
			v, err := a.Uint16()
			if err != nil {
				return err
			}
			e.Mode = new(devlink.Mode(v))
		case attrEswitchInline:
			v, err := a.Uint8()
			if err != nil {
				return err
			}
			e.Inline = new(devlink.Inline(v))
		case attrEswitchEncap:
			v, err := a.Uint8()
			if err != nil {
				return err
			}
			e.Encap = new(v == encapModeBasic)
		}
		return nil
	})
	if err == nil {
		err = told(d)
	}
	return d, e, err
}
