package mounts

import (
	"errors"
	"io"
	"os"
	"os/exec"
	"syscall"
	"time"

	"golang.org/x/sys/unix"

	"sigmaos.dev/sigma"
)

// startSpare starts who unmounts, and removes the server's cgroup, when this process is gone,
// killed or not.
func (h *mountHost) startSpare() error {
	if h == nil {
		return nil
	}
	self, err := os.Executable()
	if err != nil {
		return sigma.Wrap("sigma.mount", "", err)
	}
	args := []string{"mount", "--spare", "--device", deviceOf(h.cfg.Dir)}
	if h.cgroup != "" {
		args = append(args, "--cgroup", h.cgroup)
	}
	h.spare = exec.Command(self, append(args, "--", h.cfg.Dir)...)
	h.spare.Dir, h.spare.SysProcAttr = "/", &syscall.SysProcAttr{Setsid: true}
	if h.open, err = h.spare.StdinPipe(); err == nil {
		err = h.spare.Start()
	}
	if err != nil {
		h.spare = nil
	}
	return sigma.Wrap("sigma.mount", self, err)
}

// Close ends the keeper's part, after the server has ended.
func (h *mountHost) close() {
	h.socket.Close()
	if h.spare != nil {
		h.open.Close()
		h.spare.Wait()
	} else if h.cgroup != "" {
		unix.Rmdir(h.cgroup)
	}
}

// spareAgain is how often a spare looks whether the server has ended.
const spareAgain = time.Second

// spareMount waits until the keeper is gone and unmounts what that has not.
func spareMount(dir string, o mountOptions) error {
	io.Copy(io.Discard, os.Stdin)
	if deviceOf(dir) == o.device {
		if err := unmount(dir, true); err != nil {
			return err
		}
	}
	for o.cgroup != "" && errors.Is(unix.Rmdir(o.cgroup),
		unix.EBUSY) { // until programs have closed their files, and the server ends
		time.Sleep(spareAgain)
	}
	return nil
}

// deviceOf is the number of the device that a realm is mounted from on dir; "" if none is.
func deviceOf(dir string) (device string) {
	for _, m := range Mounts() {
		if m.Dir == dir {
			device = m.device
		}
	}
	return device
}
