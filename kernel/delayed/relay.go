// Package delayed makes messages of a session take a while. Benches and tests only: sigmad uses it
// where Config.StoreDelay says so.
package delayed

import (
	"bytes"
	"io"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"sigmaos.dev/wire/inflight"
	"sigmaos.dev/wire/session"
)

// relay is a connection each of whose messages takes a while in each direction, as to a store on
// another machine. For benches and tests.
type relay struct {
	session.Conn
	delay time.Duration
	there alarm
	back  alarm
	out   chan carried
	in    chan carried
	over  chan struct{} // closed by Close
	once  sync.Once
}

// carried is a message under way.
type carried struct {
	msg   []byte
	files []*os.File
	err   error
	due   time.Time
}

// carriedMax bounds the messages under way in one direction.
const carriedMax = 1024

func New(c session.Conn, delay time.Duration) (session.Conn, error) {
	there, err := newAlarm()
	if err != nil {
		return nil, err
	}
	back, err := newAlarm()
	if err != nil {
		there.Close()
		return nil, err
	}
	r := &relay{Conn: c, delay: delay, there: there, back: back, out: make(chan carried, carriedMax),
		in: make(chan carried, carriedMax), over: make(chan struct{})}
	go r.receive()
	go r.send()
	return r, nil
}

// alarm waits for moments. Go's timers are good for milliseconds only, and a thread that sleeps
// would keep others from running.
type alarm struct{ *os.File }

func newAlarm() (alarm, error) {
	fd, err := unix.TimerfdCreate(unix.CLOCK_MONOTONIC, unix.TFD_NONBLOCK|unix.TFD_CLOEXEC)
	if err != nil {
		return alarm{}, os.NewSyscallError("timerfd_create", err)
	}
	return alarm{os.NewFile(uintptr(fd), "alarm")}, nil
}

func (a alarm) wait(until time.Time) {
	left := time.Until(until)
	raw, err := a.SyscallConn()
	if left <= 0 || err != nil {
		return
	}
	raw.Control(func(fd uintptr) {
		err = unix.TimerfdSettime(int(fd), 0, &unix.ItimerSpec{Value: unix.NsecToTimespec(left.Nanoseconds())}, nil)
	})
	if err == nil {
		a.Read(make([]byte, 8))
	}
}

func (r *relay) receive() {
	for {
		m := carried{}
		m.msg, m.files, m.err = r.Conn.Recv()
		m.due = time.Now().Add(r.delay)
		select {
		case r.in <- m:
		case <-r.over:
			session.CloseFiles(m.files)
			return
		}
		if m.err != nil {
			return
		}
	}
}

func (r *relay) send() {
	for {
		select {
		case m := <-r.out:
			r.there.wait(m.due)
			if r.Conn.Send(m.msg, nil) != nil {
				r.Close()
				return
			}
		case <-r.over:
			return
		}
	}
}

// Send implements session.Conn. What comes with files goes at once.
func (r *relay) Send(msg []byte, files *inflight.Parcel) error {
	if files != nil {
		return r.Conn.Send(msg, files)
	}
	select {
	case r.out <- carried{msg: bytes.Clone(msg), due: time.Now().Add(r.delay)}:
		return nil
	case <-r.over:
		return io.ErrClosedPipe
	}
}

// Recv implements session.Conn.
func (r *relay) Recv() ([]byte, []*os.File, error) {
	select {
	case m := <-r.in:
		r.back.wait(m.due)
		return m.msg, m.files, m.err
	case <-r.over:
		return nil, nil, io.EOF
	}
}

// Close implements session.Conn.
func (r *relay) Close() error {
	r.once.Do(func() {
		close(r.over)
		r.there.Close()
		r.back.Close()
	})
	return r.Conn.Close()
}
