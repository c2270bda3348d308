package host

import (
	"context"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
	"time"

	"sigmaos.dev/cmd/sigma/datadir"
	"sigmaos.dev/hostsetup"
)

// cgroupsMost is how long processes that were killed may take to leave their cgroups.
const cgroupsMost = 2 * time.Second

// freeCgroups takes away the cgroups of the system on dir, which has ended. One that was killed
// could not do so itself. What is not empty stays for the next up, which ends what is in it.
func freeCgroups(ctx context.Context, dir string) {
	if _, err := os.Lstat(filepath.Join(dir, datadir.InstanceName)); err != nil || os.Geteuid() != 0 {
		return
	}
	lock, err := datadir.Lock(ctx, dir) // so that none is started meanwhile
	if err != nil {
		return
	}
	defer lock.Close()
	id, err := datadir.Instance(dir)
	if err != nil {
		return
	}
	ctx, cancel := context.WithTimeout(ctx, cgroupsMost)
	defer cancel()
	for _, at := range hostsetup.Hierarchies(hostsetup.Read) {
		for !removeDirs(filepath.Join(at, "sigma-"+id)) && datadir.Pause(ctx, 20*time.Millisecond) == nil {
		}
	}
}

// removeDirs removes an empty directory and those in it, and reports whether it is gone. The files
// of a cgroup go with it.
func removeDirs(dir string) (gone bool) {
	in, _ := os.ReadDir(dir)
	for _, e := range in {
		if e.IsDir() {
			removeDirs(filepath.Join(dir, e.Name()))
		}
	}
	err := syscall.Rmdir(dir)
	return err == nil || errors.Is(err, fs.ErrNotExist)
}
