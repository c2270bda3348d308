package term

import (
	"fmt"
	"io"
	"os"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Progress shows how far something is. Safe for concurrent use. Done shows the end and must be
// called, once.
type Progress interface {
	Add(n int64)
	Set(n int64)
	Beside(write func()) // has write write lines to where the progress is shown
	Done()
}

// How often a bar is drawn and a line printed.
const (
	barEvery  = 100 * time.Millisecond
	lineEvery = 5 * time.Second
)

// Width gives the columns of the terminal that w is, or 0.
func Width(w io.Writer) int {
	f, ok := Raw(w).(*os.File)
	if !ok {
		return 0
	}
	size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ)
	if err != nil {
		return 0
	}
	return max(int(size.Col), 40)
}

// NewProgress starts to show on out how much of total (0 = not known) is done: as a bar if out is a
// terminal, elsewhere in a line every few seconds. What is over sooner is not shown.
func NewProgress(out io.Writer, title string, total int64, unit func(int64) string) Progress {
	now := time.Now()
	return &meter{title: Printable(title), total: total, unit: unit, out: Raw(out), width: Width(out), start: now,
		last: now}
}

// meter is a progress that draws when something is added, so that it needs no goroutine.
type meter struct {
	title string
	total int64
	unit  func(int64) string
	out   io.Writer
	width int // 0 = not a terminal
	start time.Time

	mu    sync.Mutex
	n     int64     // mu
	last  time.Time // mu; of the last output
	drawn bool      // mu
}

func (m *meter) Add(n int64) { m.change(func() { m.n += n }) }
func (m *meter) Set(n int64) { m.change(func() { m.n = n }) }

func (m *meter) Beside(write func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.drawn && m.width > 0 {
		fmt.Fprint(m.out, "\r\x1b[K")
	}
	write()
	if m.drawn && m.width > 0 {
		m.printLocked(time.Now())
	}
}

func (m *meter) change(f func()) {
	m.mu.Lock()
	defer m.mu.Unlock()
	f()
	every := lineEvery
	if m.width > 0 {
		every = barEvery
	}
	if now := time.Now(); now.Sub(m.last) >= every {
		m.last = now
		m.printLocked(now)
	}
}

func (m *meter) printLocked(now time.Time) {
	rate := ""
	if s := now.Sub(m.start).Seconds(); s > 0.5 {
		rate = " " + m.unit(int64(float64(m.n)/s)) + "/s"
	}
	m.drawn = true
	if m.total <= 0 {
		m.writeLocked(fmt.Sprintf("%s %s%s", m.title, m.unit(m.n), rate))
		return
	}
	percent := min(100*m.n/m.total, 100)
	tail := fmt.Sprintf(" %3d%% %s/%s%s", percent, m.unit(m.n), m.unit(m.total), rate)
	bar := ""
	if cells := m.width - len(m.title) - len(tail) - 4; cells >= 5 {
		cells = min(cells, 40)
		full := int(min(m.n, m.total) * int64(cells) / m.total)
		bar = " [" + strings.Repeat("#", full) + strings.Repeat(".", cells-full) + "]"
	}
	m.writeLocked(m.title + bar + tail)
}

func (m *meter) writeLocked(line string) {
	if m.width == 0 {
		fmt.Fprintln(m.out, line)
		return
	}
	fmt.Fprintf(m.out, "\r\x1b[K%.*s", m.width-1, line)
}

func (m *meter) Done() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if !m.drawn {
		return // over before anybody wondered
	}
	m.printLocked(time.Now())
	if m.width > 0 {
		fmt.Fprintln(m.out)
	}
}
