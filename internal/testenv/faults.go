package testenv

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"time"

	"sigmaos.dev/internal/netlab"
)

// Kill ends everything of the machine at once, as if by kill -9 of all its processes: keeper,
// launcher, sigmad, services and procs, none of which can react to the end of another. Its kernel
// lives on, so peers are told by TCP that connections ended. It returns when all are gone.
func (m *Machine) Kill() error {
	m.cluster.Note("kill -9 %s", m.Name)
	m.killed = true
	if err := m.signalAll(syscall.SIGSTOP); err != nil { // so that nobody reacts
		return err
	}
	return poll(func() error {
		left := m.processes()
		for _, p := range left {
			syscall.Kill(p.pid, syscall.SIGKILL)
		}
		if len(left) > 0 {
			return fmt.Errorf("%d processes of %s live, %s among them", len(left), m.Name, left[0].name)
		}
		return nil
	})
}

// PowerOff is Kill of a machine whose network is cut off first, as by its plug: peers hear nothing
// more from it. Boot brings it back.
func (m *Machine) PowerOff() error {
	m.cluster.Partition(m)
	return m.Kill()
}

// Pause stops all processes of the machine; its kernel goes on, so connections stay. Resume ends
// it.
func (m *Machine) Pause() error {
	m.cluster.Note("pause %s", m.Name)
	return m.signalAll(syscall.SIGSTOP)
}

// Resume lets the machine go on after Pause. It does nothing else.
func (m *Machine) Resume() error {
	if m.instance == "" {
		return nil
	}
	m.cluster.Note("resume %s", m.Name)
	return m.signalAll(syscall.SIGCONT)
}

// signalAll signals all processes, those that start meanwhile included: it goes on until a pass
// finds none that it has not signalled yet. All are the keeper's descendants; to look for them
// among all processes of a busy host could take as long as the pause is to last.
func (m *Machine) signalAll(s syscall.Signal) error {
	seen := map[int]bool{}
	for fresh := true; fresh; {
		fresh = false
		for todo := []int{m.PID("keeper")}; len(todo) > 0; {
			pid := todo[0]
			todo = append(todo[1:], children(pid)...)
			if seen[pid] || pid == 0 {
				continue
			}
			seen[pid], fresh = true, true
			if err := syscall.Kill(pid, s); err != nil && !errors.Is(err, syscall.ESRCH) {
				return fmt.Errorf("signal %v to process %d of %s: %w", s, pid, m.Name, err)
			}
		}
	}
	return nil
}

// children lists those of all threads of a process.
func children(pid int) (out []int) {
	files, _ := filepath.Glob(fmt.Sprintf("/proc/%d/task/*/children", pid))
	for _, file := range files {
		text, _ := os.ReadFile(file)
		for _, word := range strings.Fields(string(text)) {
			if child, err := strconv.Atoi(word); err == nil {
				out = append(out, child)
			}
		}
	}
	return out
}

// Restart boots a machine that was killed, once nothing of it is left; its network is healed.
func (m *Machine) Restart() error {
	if m.Net != nil {
		for _, o := range m.cluster.machines {
			m.cluster.change(m, o, func(r *netlab.Rule) { *r = netlab.Rule{} })
		}
	}
	if err := poll(func() error {
		if m.Running() {
			return errors.New(string(m.Name) + " runs")
		}
		return nil
	}); err != nil {
		return err
	}
	return m.Boot()
}

// KillDaemon kills one daemon with kill -9: "keeper", "launcher", "sigmad", "named", "besched",
// "s3d", "dbd/REALM", "machined" or "lcsched".
func (m *Machine) KillDaemon(name string) error {
	m.cluster.Note("kill -9 %s of %s", name, m.Name)
	m.killed = m.killed || name == "keeper"
	return m.kill9(name)
}

// Cut drops what from sends to to from now on. The other direction stays as it is.
func (c *Cluster) Cut(from, to *Machine) {
	c.Note("cut %s > %s", from.Name, to.Name)
	c.one(from, to, func(r *netlab.Rule) { r.Cut = true })
}

// CutBoth cuts both directions.
func (c *Cluster) CutBoth(a, b *Machine) {
	c.Note("cut %s <> %s", a.Name, b.Name)
	c.change(a, b, func(r *netlab.Rule) { r.Cut = true })
}

// Partition cuts these machines off all others, in both directions.
func (c *Cluster) Partition(these ...*Machine) {
	inside := map[*Machine]bool{}
	for _, m := range these {
		c.Note("cut %s off", m.Name)
		inside[m] = true
	}
	for _, m := range these {
		for _, o := range c.machines {
			if !inside[o] {
				c.change(m, o, func(r *netlab.Rule) { r.Cut = true })
			}
		}
	}
}

// Delay makes packets between two machines late by d in each direction.
func (c *Cluster) Delay(a, b *Machine, d time.Duration) {
	c.Note("delay %s <> %s by %v", a.Name, b.Name, d)
	c.change(a, b, func(r *netlab.Rule) { r.Delay = d })
}

// Throttle lets so many bytes pass in a second between two machines, in each direction.
func (c *Cluster) Throttle(a, b *Machine, bytesPerSecond int) {
	c.Note("throttle %s <> %s to %d B/s", a.Name, b.Name, bytesPerSecond)
	c.change(a, b, func(r *netlab.Rule) { r.Rate = bytesPerSecond })
}

// Lose drops a share of the packets between two machines, in each direction.
func (c *Cluster) Lose(a, b *Machine, share float64) {
	c.Note("lose %v of %s <> %s", share, a.Name, b.Name)
	c.change(a, b, func(r *netlab.Rule) { r.Loss = share })
}

// Heal ends all that was done to the network.
func (c *Cluster) Heal() {
	c.Note("heal")
	c.Lab.Heal()
}

// change alters the rules of both directions.
func (c *Cluster) change(a, b *Machine, f func(*netlab.Rule)) {
	c.one(a, b, f)
	c.one(b, a, f)
}

func (c *Cluster) one(from, to *Machine, f func(*netlab.Rule)) {
	if from != to {
		c.Lab.Change(from.Net, to.Net, f)
	}
}
