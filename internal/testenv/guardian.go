package testenv

import (
	"io"
	"os/exec"
	"path/filepath"
	"syscall"
)

// guardianScript waits for the end of its standard input, which the test program holds, and then
// removes what the test left, also of a system that was paused. A test that cleans up says so by a
// line first.
const guardianScript = `
read -r done && exit 0
read -r id <"$2/instance"
for f in $(grep -la -e "sigma-${id:-none}" -e "instance.${id:-none}" /proc/[0-9]*/cgroup /proc/[0-9]*/cmdline); do
	f=${f#/proc/}
	kill -CONT "${f%/*}"
done 2>/dev/null
"$1" down --now --data "$2" >/dev/null 2>&1
if test -n "$id"; then
	for g in $(find /sys/fs/cgroup -depth -type d -path "*/sigma-$id*" -not -path "*/.*" 2>/dev/null); do rmdir "$g" 2>/dev/null; done
fi
umount -l "$2" 2>/dev/null # a disk of its own
rm -rf "$3"
rmdir "$4"
` // nobody reads what it prints

// guardian is a process that outlives the test program.
type guardian struct {
	cmd *exec.Cmd
	in  io.WriteCloser
}

// newGuardian starts the guardian of a system; dir is the directory of the test, which the last
// guardian removes.
func newGuardian(s *System, dir string) (*guardian, error) {
	cmd := exec.Command("sh", "-c", guardianScript, "sh", filepath.Join(s.bin, "sigma"), s.DataDir, s.home, dir)
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // a ^C at the terminal is for the tests
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	return &guardian{cmd, in}, cmd.Start()
}

// release ends the guardian without a sweep.
func (g *guardian) release() {
	if g == nil {
		return
	}
	io.WriteString(g.in, "done\n")
	g.in.Close()
	g.cmd.Wait()
}
