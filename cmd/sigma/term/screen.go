package term

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Screen is a terminal that shows one picture after another. It uses the terminal's second screen,
// so that what was there before is there afterwards, and reads keys one by one.
type Screen struct {
	in, out *os.File
	before  *unix.Termios // how the terminal was
}

// OpenScreen gives nil if in and out are not a terminal. Close puts the terminal back.
func OpenScreen(in io.Reader, out io.Writer) *Screen {
	i, iok := in.(*os.File)
	o, ook := out.(*os.File)
	if !iok || !ook || Width(out) == 0 {
		return nil
	}
	before, err := unix.IoctlGetTermios(int(i.Fd()), unix.TCGETS)
	if err != nil {
		return nil
	}
	keys := *before
	keys.Lflag &^= unix.ICANON | unix.ECHO
	keys.Cc[unix.VMIN], keys.Cc[unix.VTIME] = 0, 0
	if unix.IoctlSetTermios(int(i.Fd()), unix.TCSETS, &keys) != nil {
		return nil
	}
	fmt.Fprint(o, "\x1b[?1049h\x1b[?25l")
	return &Screen{i, o, before}
}

// Close puts the terminal back.
func (s *Screen) Close() {
	fmt.Fprint(s.out, "\x1b[?25h\x1b[?1049l")
	unix.IoctlSetTermios(int(s.in.Fd()), unix.TCSETS, s.before)
}

// Size is the terminal's, as it is now.
func (s *Screen) Size() (width, height int) {
	w, err := unix.IoctlGetWinsize(int(s.out.Fd()), unix.TIOCGWINSZ)
	if err != nil || w.Col == 0 || w.Row == 0 {
		return 80, 24
	}
	return int(w.Col), int(w.Row)
}

// Draw shows text, cut to the terminal's size.
func (s *Screen) Draw(text string, width, height int) error {
	var b strings.Builder
	b.WriteString("\x1b[H")
	for i, line := range strings.Split(strings.TrimRight(text, "\n"), "\n") {
		if i >= height {
			break
		}
		if i > 0 {
			b.WriteString("\r\n")
		}
		if r := []rune(line); len(r) > width {
			line = string(r[:width])
		}
		b.WriteString(Printable(line) + "\x1b[K")
	}
	b.WriteString("\x1b[J")
	_, err := io.WriteString(s.out, b.String())
	return err
}

// keyTurn is how often it is looked whether the context has ended while a key is waited for.
const keyTurn = 100 * time.Millisecond

// Key waits so long for a key; 0 = none came. over: the context has ended, or nobody is at the
// terminal any more.
func (s *Screen) Key(ctx context.Context, most time.Duration) (key byte, over bool) {
	for deadline := time.Now().Add(most); ctx.Err() == nil; {
		left := time.Until(deadline)
		if left <= 0 {
			return 0, false
		}
		fds := []unix.PollFd{{Fd: int32(s.in.Fd()), Events: unix.POLLIN}}
		n, err := unix.Poll(fds, int(min(left, keyTurn).Milliseconds())+1)
		if err == unix.EINTR || n == 0 {
			continue
		}
		var b [1]byte
		if n, err := unix.Read(int(s.in.Fd()), b[:]); err != nil || n == 0 {
			return 0, true
		}
		return b[0], false
	}
	return 0, true
}
