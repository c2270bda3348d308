package testenv

import (
	"io"
	"os/exec"
	"path/filepath"
	"syscall"
)

// guardianScript waits for the end of its standard input, which the test program holds, and then removes what the test left. A test that cleans up says so by a line first.
const guardianScript = `
read -r done && exit 0
"$1" down --data "$2" >/dev/null 2>&1
if read -r id <"$2/instance"; then
	for g in $(find /sys/fs/cgroup -depth -type d -path "*/sigma-$id*" -not -path "*/.*" 2>/dev/null); do rmdir "$g" 2>/dev/null; done
fi
rm -rf "$3"
`

// guardian is a process that outlives the test program.
type guardian struct {
	cmd *exec.Cmd
	in  io.WriteCloser
}

func newGuardian(s *System) (*guardian, error) {
	cmd := exec.Command("sh", "-c", guardianScript, "sh", filepath.Join(s.bin, "sigma"), s.DataDir, filepath.Dir(s.DataDir))
	cmd.SysProcAttr = &syscall.SysProcAttr{Setsid: true} // a ^C at the terminal is for the tests
	in, err := cmd.StdinPipe()
	if err != nil {
		return nil, err
	}
	return &guardian{cmd, in}, cmd.Start()
}

// release ends the guardian without a sweep.
func (g *guardian) release() {
	io.WriteString(g.in, "done\n")
	g.in.Close()
	g.cmd.Wait()
}
