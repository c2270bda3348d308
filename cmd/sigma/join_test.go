package main

import (
	"encoding/json"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"

	"sigmaos.dev/cmd/sigma/cli"
	"sigmaos.dev/cmd/sigma/datadir"
	"sigmaos.dev/kernel"
	"sigmaos.dev/kernel/identity"
)

// launched gives the arguments that the fake launcher got last.
func (w *world) launched() string {
	b, err := os.ReadFile(filepath.Join(w.data, "arguments"))
	if err != nil {
		w.t.Fatal(err)
	}
	return string(b)
}

func freePort(t *testing.T) string {
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	return l.Addr().String()
}

func someToken() string { return identity.NewToken(identity.Fingerprint{1}).Text() }

// What the flags say of a machine is passed on, and remembered.
func TestUpOffers(t *testing.T) {
	w := newWorld(t, "ready")
	address := freePort(t)
	for i, flags := range [][]string{{"--machine", "m1", "--address", address, "--cpu", "0.5", "--memory", "1GiB",
		"--label", "zone=b", "--label", "rack=7"}, nil, {"--cpu", "1"}} {
		if got := w.run(append([]string{"up", "--detach"}, flags...)...); got.code != 0 {
			t.Fatalf("up %q: %+v", flags, got)
		}
		cpu := []string{"500", "500", "1000"}[i]
		want := "--machine m1 --address " + address + " --cpu " + cpu + " --memory 1073741824 --labels rack=7,zone=b "
		if got := w.launched(); !strings.HasPrefix(got, want) || !strings.Contains(got, "--listen "+address) ||
			!strings.Contains(got, "s3d=") {
			t.Errorf("up %q: the launcher got %q", flags, got)
		}
		w.run("down")
	}
}

// A machine joins with a token that does not stay, and runs what its role needs, also when it is
// started again.
func TestJoin(t *testing.T) {
	for _, c := range []struct {
		role, flag, set string
	}{{datadir.RoleOrdinary, "--detach", "sigmad"}, {datadir.RoleControl, "--control",
		"sigmad named besched machined lcsched"}} {
		w := newWorld(t, "error: the token has been used")
		os.WriteFile(filepath.Join(w.data, datadir.InstanceName), []byte("00000402\n"), 0o600)
		token := someToken()
		join := []string{"join", "127.0.0.1:7", "--token", token, "--machine", "m2", "--address", freePort(t), "-d",
			c.flag}
		programs := func() string {
			var names []string
			for f := range strings.FieldsSeq(w.launched()) {
				if name, _, ok := strings.Cut(f, "="); ok {
					names = append(names, name)
				}
			}
			return strings.Join(names, " ")
		}
		file := filepath.Join(w.data, "sigmad", "join")
		if got := w.run(join...); got.code != 1 || !strings.Contains(got.err, "the token has been used") {
			t.Fatalf("join: %+v", got)
		}
		if _, err := os.Stat(file); err == nil {
			t.Error("the token is kept after a failure")
		}
		if got := w.run("up", "-d"); got.code != 1 || !strings.Contains(got.err, "did not succeed") {
			t.Errorf("up after a failure: %+v", got)
		}
		os.WriteFile(filepath.Join(w.data, "behave"), []byte("ready"), 0o600)
		if got := w.run(join...); got.code != 0 || !strings.Contains(got.out, "joined the system at 127.0.0.1:7") {
			t.Fatalf("join again: %+v", got)
		}
		if got := programs(); got != c.set {
			t.Errorf("the launcher got %q, want %q", got, c.set)
		}
		var j kernel.Join
		b, _ := os.ReadFile(file)
		if err := json.Unmarshal(b, &j); err != nil ||
			j != (kernel.Join{Address: "127.0.0.1:7", Token: token, Control: c.role == datadir.RoleControl}) {
			t.Errorf("join file: %s, %v", b, err)
		}
		if st, err := os.Stat(file); err != nil || st.Mode().Perm() != 0o600 ||
			st.Sys().(*syscall.Stat_t).Uid != 0x40000000+2<<20+1 {
			t.Errorf("join file: %+v, %v", st.Sys(), err)
		}
		w.run("down")
		os.Rename(file, filepath.Join(w.data, "sigmad", "identity")) // as sigmad would
		if got := w.run("up", "-d"); got.code != 0 || programs() != c.set {
			t.Errorf("up of a member: %+v, programs %q", got, programs())
		}
		w.run("down")
		for _, args := range [][]string{join, {"up", "-d", "--machine", "other"}} {
			if got := w.run(args...); got.code != 1 || !strings.Contains(got.err, "machine m2") {
				t.Errorf("%q on a member's DATA: %+v", args, got)
			}
		}
	}
	w := newWorld(t, "ready")
	if got := w.run("up", "-d"); got.code != 0 {
		t.Fatalf("up: %+v", got)
	}
	w.run("down")
	if got := w.run("join", "127.0.0.1:7", "--token", someToken()); got.code != 1 ||
		!strings.Contains(got.err, "of a system of its own") {
		t.Errorf("join on a founder's DATA: %+v", got)
	}
}

// What cannot be meant is refused before anything is made.
func TestBadMachines(t *testing.T) {
	w := newWorld(t, "ready")
	data := filepath.Join(t.TempDir(), "new")
	taken, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	defer taken.Close()
	for args, msg := range map[string]string{
		"up --address 127.0.0.1":                   "is not HOST:PORT",
		"up --address :7700":                       "is not HOST:PORT",
		"up --address 0.0.0.0:7700":                "no address that another machine could connect to",
		"up --address [::]:7700":                   "no address that another machine could connect to",
		"up --address [fe80::1%lo]:7700":           "means something else on each machine",
		"up --address 127.0.0.1:0":                 "no port number",
		"up --address 127.0.0.1:70000":             "no port number",
		"up --cpu 0":                               "not a number of cores",
		"up --cpu nan":                             "not a number of cores",
		"up --cpu 100000":                          "not a number of cores",
		"up --memory 1KiB":                         "is not between",
		"up --memory lots":                         "not a size",
		"up --memory 100000GiB":                    "is not between",
		"up --label zone":                          "NAME=VALUE",
		"up --label a=b,c=d":                       "NAME=VALUE",
		"up --label a=b --label a=c":               "NAME=VALUE",
		"up --machines 50000":                      "which is what this host can bear",
		"up --machines -1":                         "which is what this host can bear",
		"up --machines 3 --control 2":              "is not 1, 3 or 5",
		"up --machines 2 --control 3":              "is not 1, 3 or 5",
		"up --machines 2 --machine m":              "are for one machine",
		"up --machines 2 --address 127.0.0.1:7700": "are for one machine",
		"up --control 3":                           "--control says how many",
		"join":                                     "an argument is missing",
		"join 127.0.0.1:7":                         "a token is needed",
		"join 127.0.0.1 --token T":                 "is not HOST:PORT",
		"join 127.0.0.1:7 --token sigma-token-1-x": "not a whole token",
		"join 127.0.0.1:7 --token -":               "a token is needed",
	} {
		if got := w.run(append(strings.Fields(args), "--data", data)...); got.code == 0 ||
			!strings.Contains(got.err, msg) {
			t.Errorf("%s: %+v", args, got)
		}
		if _, err := os.Stat(data); err == nil {
			t.Fatalf("%s: DATA was made", args)
		}
	}
	if got := w.run("up", "-d", "--address", taken.Addr().String()); got.code != 1 ||
		!strings.Contains(got.err, "another program listens on") {
		t.Errorf("a port that is taken: %+v", got)
	}
}

// Several machines of which one does not come up are taken down.
func TestUpSeveralFails(t *testing.T) {
	w := newWorld(t, "")
	m1 := datadir.MachineDir(w.data, 1)
	if err := os.MkdirAll(m1, 0o700); err != nil {
		t.Fatal(err)
	}
	for _, f := range []string{"behave", datadir.LockName} {
		os.WriteFile(filepath.Join(m1, f), []byte("ready"), 0o600)
	}
	got := w.run("up", "--detach", "--machines", "2")
	if strings.Contains(got.err, "needs veth") {
		t.Skip(got.err)
	}
	if got.code == 0 || !strings.Contains(got.err,
		"machine m1 is up") { // what is there answers nothing, so m2 gets no token
		t.Errorf("up: %+v", got)
	}
	launched, _ := os.ReadFile(filepath.Join(m1, "arguments"))
	if !strings.Contains(string(launched), "--listen 10.77.0.1:7700") || !strings.Contains(string(launched),
		"--hold-fd 5") {
		t.Errorf("the launcher got %q", launched)
	}
	if _, held, err := datadir.Running(m1); held || err != nil {
		t.Errorf("m1 runs; %v", err)
	}
	if got := w.run("down"); got.code != 1 || !strings.Contains(got.err, "no sigmaOS is running on "+w.data) {
		t.Errorf("down: %+v", got)
	}
	if got := w.run("join", "127.0.0.1:7", "--token", someToken()); got.code != 1 ||
		!strings.Contains(got.err, "of several machines") {
		t.Errorf("join: %+v", got)
	}
	if got := w.run("up", "--machines", "3"); got.code != 1 || !strings.Contains(got.err, "is that of 2 machines") {
		t.Errorf("another number: %+v", got)
	}
}

func TestListenOn(t *testing.T) {
	for address, want := range map[string]string{"127.0.0.1:80": "127.0.0.1:80", "192.0.2.1:80": "0.0.0.0:80",
		"[2001:db8::1]:80": "[::]:80"} {
		if got := cli.ListenOn(netip.MustParseAddrPort(address)); got.String() != want {
			t.Errorf("%s: %v", address, got)
		}
	}
}
