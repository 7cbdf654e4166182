package sysfs

// Plain makes the directory do without openat2, as on an old kernel.
func (d *Dir) Plain() { d.plain = true }
