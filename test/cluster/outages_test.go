//go:build system

package cluster

import (
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"net/http"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"sigmaos.dev/internal/s3server"
	"sigmaos.dev/internal/testenv"
	"sigmaos.dev/sigma"
)

// tellMax is how long a command may take to answer, and how long after its begin an outage may be
// untold. Detection itself takes up to 1.75 s where a machine does not answer any more
// (SPECIFICATION.md, machines), and none where a process of this machine does not.
const tellMax = 2 * time.Second

const (
	lookPause = 200 * time.Millisecond // between one look and the next, so that looking does not keep the host busy
	wellMax   = 30 * time.Second
)

// outages stages outages of one cluster and holds sigma status and sigma doctor to what they say of
// them.
type outages struct {
	t      *testing.T
	c      *testenv.Cluster
	stalls *testenv.Stalls
	what   string    // the outage
	began  time.Time // when it was complete
}

// told is what status and doctor say with --json.
type told struct {
	code    int
	err     error // it said something else
	Running bool
	Down    []finding
}

type finding struct{ Check, State, Found, Advice string }

// look is what status and doctor of a machine have to say of an outage.
type look struct {
	at     *testenv.Machine
	status int // exit code of status; doctor's is 1
	check  string
	says   string
}

// Goal: in six and more outages status and doctor answer within 2 s, say what is broken 2 s after
// it broke at the latest, and their exit codes tell it: doctor's is 1, and status's only if there
// is no sigmad to answer. When all is well again they say that.
func TestOutagesAreTold(t *testing.T) {
	began := time.Now()
	o := &outages{t: t, stalls: testenv.WatchStalls(t)}
	o.c = testenv.NewCluster(t, testenv.ClusterOptions{Machines: 4, Control: 3, Disk: 600 * sigma.MiB})
	m1, m2, m3, m4 := o.c.Machine(0), o.c.Machine(1), o.c.Machine(2), o.c.Machine(3)
	store := o.store(m1)
	o.well(m1, m4)

	o.stage("a machine is cut off by the network", func() { o.c.Partition(m4) })
	o.tells(look{m1, 0, "membership", "3 of 4 machines alive"},
		look{m4, 0, "quorum", "0 of 3 control machines, 3 silent: no quorum"})
	o.c.Heal()
	o.well(m1, m4)

	o.stage("a disk is full", func() { must(t, m1.FillDisk(20<<20)) })
	o.tells(look{m1, 0, "service", "named: disk full"})
	must(t, m1.FreeDisk())

	for _, daemon := range []string{"besched", "launcher"} {
		o.well(m1)
		o.stage(daemon+" stands still", func() { o.signal(m1, daemon, syscall.SIGSTOP) })
		o.tells(look{m1, 0, "service", daemon + ": silent"})
		o.signal(m1, daemon, syscall.SIGCONT)
	}

	o.stage("sigmad stands still", func() { o.signal(m4, "sigmad", syscall.SIGSTOP) })
	o.tells(look{m4, 1, "sigmad", "no answer within"}, look{m1, 0, "membership", "3 of 4 machines alive"})
	o.stage("sigmad is dead, and nobody starts another", func() {
		o.signal(m4, "keeper", syscall.SIGSTOP)
		o.signal(m4, "sigmad", syscall.SIGKILL)
	})
	o.tells(look{m4, 1, "sigmad", ""}, look{m1, 0, "membership", "3 of 4 machines alive"})
	o.signal(m4, "keeper", syscall.SIGCONT)
	o.well(m1, m4)

	o.stage("the object store hangs", func() { store.Set(s3server.Always(s3server.Fault{Hang: true})) })
	o.tells(look{m1, 0, "object store", "did not answer"}, look{m4, 0, "object store", "did not answer"})
	store.Set(nil)
	o.well(m1, m4)

	o.stage("a control machine of three loses its power", func() { must(t, m2.PowerOff()) })
	o.tells(look{m1, 0, "membership", "3 of 4 machines alive"}, look{m4, 0, "membership", "3 of 4 machines alive"})
	if out, _, code := m2.CLI(t, "status", "--json"); code != 1 || !strings.Contains(out, `"running": false`) {
		t.Errorf("status of a machine without power ends with %d: %s", code, out)
	}
	o.stage("so does another", func() { must(t, m3.PowerOff()) })
	o.tells(look{m1, 0, "quorum", "1 of 3 control machines"}, look{m4, 0, "quorum", "no quorum"})
	t.Logf("all of it took %v", time.Since(began).Round(time.Millisecond))
}

// store has the cluster keep its objects in a store that can hang, at an address of machine m,
// whose s3d asks it.
func (o *outages) store(m *testenv.Machine) *s3server.Proxy {
	p := s3server.Start(o.t).Proxy(o.t)
	var l net.Listener
	must(o.t, m.Net.Do(func() {
		var err error
		l, err = net.Listen("tcp", "127.0.0.1:0")
		must(o.t, err)
	}))
	srv := &http.Server{Handler: p}
	go srv.Serve(l)
	o.t.Cleanup(func() { srv.Close() })
	keys := filepath.Join(o.t.TempDir(), "keys")
	must(o.t, os.WriteFile(keys, fmt.Appendf(nil, "aws_access_key_id=%s\naws_secret_access_key=%s\n",
		s3server.AccessKey, s3server.SecretKey), 0o600))
	m.Must(o.t, "s3", "store", "set", "--all", "--credentials", keys, fmt.Sprintf("http://%s/%s", l.Addr(),
		s3server.Bucket))
	return p
}

func (o *outages) signal(m *testenv.Machine, daemon string, s syscall.Signal) {
	o.t.Helper()
	pid := m.PID(daemon)
	if pid == 0 {
		o.t.Fatalf("%s of %s does not run", daemon, m.Name)
	}
	must(o.t, syscall.Kill(pid, s))
}

// stage begins an outage.
func (o *outages) stage(what string, begin func()) {
	o.what = what
	begin()
	o.began = time.Now()
}

// tells checks that status and doctor of machines say what is down, with --json and without: the
// first time that they are asked more than tellMax after the begin of the outage at the latest.
func (o *outages) tells(looks ...look) {
	o.t.Helper()
	var all sync.WaitGroup
	for _, l := range looks {
		for _, command := range []string{"status", "doctor"} {
			all.Go(func() { o.see(l, command) })
		}
	}
	all.Wait()
	o.t.Logf("%s: told by all %v after", o.what, time.Since(o.began).Round(time.Millisecond))
}

func (o *outages) see(l look, command string) {
	code := l.status
	if command == "doctor" {
		code = 1
	}
	for {
		at := time.Now()
		var err, plain error
		var both sync.WaitGroup
		both.Go(func() { err = o.ask(l.at, command).says(code, l.check, l.says) })
		both.Go(func() {
			if out, errs, got := o.cli(l.at, command); got != code || !strings.Contains(out+errs, l.says) {
				plain = fmt.Errorf("want exit code %d and %q, got %d:\n%s%s", code, l.says, got, out, errs)
			}
		})
		both.Wait()
		late := at.Sub(o.began) - o.stalls.Between(o.began, at)
		switch err = errors.Join(err, plain); {
		case err == nil:
			return
		case late > tellMax*testenv.Slow():
			o.t.Errorf("%s: %v later %s of %s: %v", o.what, late, command, l.at.Name, err)
			return
		}
		<-time.After(lookPause)
	}
}

// well waits until status and doctor of machines say that nothing is down.
func (o *outages) well(machines ...*testenv.Machine) {
	o.t.Helper()
	var all sync.WaitGroup
	for _, m := range machines {
		for _, command := range []string{"status", "doctor"} {
			all.Go(func() {
				for end := time.Now().Add(wellMax * testenv.Slow()); ; <-time.After(lookPause) {
					a := o.ask(m, command)
					if a.code == 0 && a.Running && len(a.Down) == 0 {
						return
					}
					if time.Now().After(end) {
						o.t.Errorf("%v after %q %s of %s still says %+v", wellMax, o.what, command, m.Name, a)
						return
					}
				}
			})
		}
	}
	all.Wait()
}

// cli runs a command, which has to end within tellMax and what the host takes to run a program.
func (o *outages) cli(m *testenv.Machine, args ...string) (out, errs string, code int) {
	at := time.Now()
	out, errs, code = m.CLI(o.t, args...)
	took := time.Since(at) - o.stalls.Between(at, time.Now())
	if took > tellMax*testenv.Slow() {
		at = time.Now()
		m.CLI(o.t, "version")
		if busy := time.Since(at); took-busy > tellMax*testenv.Slow() {
			o.t.Errorf("%s: %q of %s took %v, where sigma version takes %v", o.what, args, m.Name, took, busy)
		}
	}
	return out, errs, code
}

// ask asks status or doctor.
func (o *outages) ask(m *testenv.Machine, command string) (a told) {
	out, errs, code := o.cli(m, command, "--json")
	a.code = code
	if command == "status" {
		a.err = json.Unmarshal([]byte(out), &a)
	} else {
		var all []finding
		a.err = json.Unmarshal([]byte(out), &all)
		a.Running = true
		for _, f := range all {
			if f.State == "down" || f.State == "missing" {
				a.Down = append(a.Down, f)
			}
		}
	}
	if a.err != nil {
		a.err = fmt.Errorf("%w: %s%s", a.err, out, errs)
	}
	return a
}

// says looks for what is down.
func (a told) says(code int, check, text string) error {
	for _, f := range a.Down {
		if f.Check == check && strings.Contains(f.Found, text) && f.Advice != "" && a.code == code && a.Running {
			return nil
		}
	}
	return fmt.Errorf("want exit code %d and %s: %s; got %+v", code, check, text, a)
}
