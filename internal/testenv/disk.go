package testenv

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"syscall"

	"golang.org/x/sys/unix"
)

// giveDisk mounts the disk of a machine where its data directory will be.
func (c *Cluster) giveDisk(data string) error {
	if c.o.Disk == 0 {
		return nil
	}
	if err := os.MkdirAll(data, 0o711); err != nil {
		return err
	}
	if err := syscall.Mount("sigma-test", data, "tmpfs", 0, fmt.Sprintf("mode=0711,size=%d", c.o.Disk)); err != nil {
		return fmt.Errorf("mount a disk on %s: %w", data, err)
	}
	return nil
}

// takeDisks unmounts the machines' disks.
func (c *Cluster) takeDisks() (errs []error) {
	for _, m := range c.machines {
		if c.o.Disk > 0 {
			errs = append(errs, syscall.Unmount(m.DataDir, syscall.MNT_DETACH))
		}
	}
	return errs
}

// filler is the file that fills a disk.
const filler = "filler"

// FillDisk takes all that is free of the machine's disk, which must be its own
// (ClusterOptions.Disk), but so many bytes. FreeDisk gives it back.
func (m *Machine) FillDisk(but uint64) error {
	if m.cluster.o.Disk == 0 {
		return errors.New("the disk of " + string(m.Name) + " is not its own")
	}
	m.cluster.Note("fill the disk of %s but %d bytes", m.Name, but)
	var st unix.Statfs_t
	if err := unix.Statfs(m.DataDir, &st); err != nil {
		return err
	}
	f, err := os.OpenFile(filepath.Join(m.DataDir, filler), os.O_CREATE|os.O_WRONLY, 0o600)
	if err != nil {
		return err
	}
	defer f.Close()
	free := st.Bavail * uint64(st.Frsize)
	if free <= but {
		return nil
	}
	err = unix.Fallocate(int(f.Fd()), 0, 0, int64(free-but))
	if errors.Is(err, unix.ENOSPC) { // others were faster
		err = nil
	}
	return err
}

// FreeDisk ends FillDisk.
func (m *Machine) FreeDisk() error {
	m.cluster.Note("free the disk of %s", m.Name)
	return os.Remove(filepath.Join(m.DataDir, filler))
}
