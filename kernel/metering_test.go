package kernel

import (
	"bytes"
	"encoding/json"
	"slices"
	"strings"
	"testing"
	"time"

	"sigmaos.dev/kernel/accounts"
	"sigmaos.dev/kernel/computed"
	"sigmaos.dev/kernel/meter"
	"sigmaos.dev/kernel/roles"
	"sigmaos.dev/kernel/services"

	"sigmaos.dev/kernel/identity"
	"sigmaos.dev/kernel/report"
	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

// Goal: what a realm used of all machines is told at each, each machine's once; of one that is lost
// it is said that its procs are not told.
func TestFarUsage(t *testing.T) {
	x := newThree(t)
	for _, at := range []sigma.MachineID{"m1", "m2", "m3"} {
		x.burst(at, 4)
	}
	starts := func(at sigma.MachineID) (n int) {
		seen := map[string]bool{}
		for _, u := range objects[report.RealmUsage](t, x.m[at].connect(sigma.SystemRealm), "/sys/usage") {
			if key := u.Machine + u.Realm + u.From.String(); seen[key] {
				t.Errorf("twice: %+v", u)
			} else {
				seen[key] = true
			}
			n += int(u.Starts)
		}
		return n
	}
	for at := range x.m {
		if n := starts(at); n != 12 {
			t.Errorf("%s tells of %d starts", at, n)
		}
	}
	procs := map[string]bool{}
	for _, p := range objects[report.ProcSpent](t, x.m["m2"].connect(sigma.SystemRealm), "/sys/usage-procs") {
		procs[p.Proc] = true
	}
	if len(procs) != 12 {
		t.Errorf("%d procs are told of", len(procs))
	}
	x.lose("m3")
	eventually(t, "the loss is told", func() bool {
		text, _, err := x.m["m1"].connect(sigma.SystemRealm).Get(t.Context(), "/sys/usage-procs")
		return err == nil && strings.Contains(string(text), `{"machine":"m3","missing":`)
	})
}

// Goal: what one read tells of a machine is the machine's own word, or a copy of it, whatever
// becomes of the machine between its pages: never some of both. What cannot be read to its end is
// said to be missing.
func TestUsageOfOneSource(t *testing.T) {
	x := newThree(t)
	const hours = 400 // more than a page; of a realm that is older than they are
	for i := range hours {
		x.m["m3"].k.meters.ledger.Started(time.Now().Add(-time.Duration(i)*time.Hour), sigma.SystemRealm, "p", "", 1,
			sigma.BestEffort)
	}
	eventually(t, "the control machine is told", func() bool {
		of := meter.Copy{Machine: "m3", ID: x.m["m3"].k.meters.ledger.ID}
		return copiedLines(x.m["m1"].k.meters.copies, of) == hours
	})
	lost := func(is bool) {
		x.change(func(m *identity.Member) { m.Lost = is && m.Machine == "m3" })
	}
	// read tells of m3's lines: how many there are, how many of them were told, and whether one
	// says that something is missing. between runs once some are read.
	read := func(between func()) (lines, told int, missing bool) {
		f := x.m["m1"].k.accounts.UsageFile(roles.Usage, sigma.SystemRealm, true).(*usageLines)
		var at accounts.Cursor
		for more := true; more; {
			var text []byte
			var err error
			if text, at, more, err = f.Page(t.Context(), at); err != nil {
				t.Fatal(err)
			}
			for line := range bytes.Lines(text) {
				var u struct {
					report.RealmUsage
					Missing string `json:"missing"`
				}
				if err := json.Unmarshal(line, &u); err != nil {
					t.Fatal(err)
				}
				if u.Machine != "m3" {
					continue
				}
				missing = missing || u.Missing != ""
				if u.Missing == "" {
					lines++
				}
				if u.Told != nil {
					told++
				}
			}
			if lines > 0 && between != nil {
				between()
				between = nil
			}
		}
		return lines, told, missing
	}
	if lines, told, missing := read(nil); lines != hours || told != 0 || missing {
		t.Errorf("%d lines of m3 are read, %d of them told, missing %v", lines, told, missing)
	}
	if lines, told, missing := read(func() { lost(true) }); lines == 0 || lines == hours || told != 0 || !missing {
		t.Errorf("lost between the pages: %d lines of m3, %d of them told, missing %v", lines, told, missing)
	}
	if lines, told, missing := read(func() { lost(false) }); lines != hours || told != hours || missing {
		t.Errorf("back between the pages: %d lines of m3, %d of them told, missing %v", lines, told, missing)
	}
	if lines, _, missing := read(func() {
		x.mu.Lock()
		x.members = slices.DeleteFunc(x.members, func(m identity.Member) bool { return m.Machine == "m3" })
		x.mu.Unlock()
		lost(false)
	}); lines > hours || (lines < hours) != missing {
		t.Errorf("removed between the pages: %d lines of m3, missing %v", lines, missing)
	}
}

// Goal: /sys/usage tells a tenant of its own realm, the provider of all.
func TestUsageFile(t *testing.T) {
	m := boot(t)
	admin := m.connect(sigma.SystemRealm)
	if err := admin.Realms().Create(t.Context(), "other"); err != nil {
		t.Fatal(err)
	}
	for _, realm := range []sigma.RealmID{"default", "other"} {
		c := m.connect(realm)
		id := m.spawn(c, sigma.Descriptor{Memory: 8 * sigma.MiB})
		(<-m.procs).exit(0)
		m.status(c, id)
	}
	of := func(g getter) (out []string) {
		for _, u := range objects[report.RealmUsage](t, g, "/sys/usage") {
			if u.Starts != 1 || u.Ended != 1 || u.Memory <= 0 || u.Machine != "m1" {
				t.Errorf("the usage is %+v", u)
			}
			out = append(out, u.Realm)
		}
		return out
	}
	if got := of(admin); len(got) != 2 || got[0] != "default" || got[1] != "other" {
		t.Errorf("the provider is told of %v", got)
	}
	worker := m.worker(m.connect("other")) // one more start
	for _, u := range objects[report.RealmUsage](t, worker, "/sys/usage") {
		if u.Realm != "other" || u.Starts != 2 || u.Ended != 1 {
			t.Errorf("a tenant is told of %+v", u)
		}
	}
}

// Goal: what a machine had told when it was lost stays in /sys/usage, on all machines, marked with
// when it was told, and when it is no member any more it stays, without a mark.
func TestUsageOfLost(t *testing.T) {
	x := newThree(t)
	x.m["m3"].k.meters.ledger.Started(time.Now(), sigma.DefaultRealm, "p", "", 1, sigma.BestEffort)
	read := func(at sigma.MachineID) (starts uint64, told int) {
		for _, u := range objects[report.RealmUsage](t, x.c[at], "/sys/usage") {
			if u.Machine == "m3" && u.Realm == string(sigma.DefaultRealm) {
				starts += u.Starts
				if u.Told != nil {
					told++
				}
			}
		}
		return starts, told
	}
	eventually(t, "the control machine is told", func() bool {
		return copiedLines(x.m["m1"].k.meters.copies, meter.Copy{Machine: "m3", ID: x.m["m3"].k.meters.ledger.ID}) == 1
	})
	for _, at := range []sigma.MachineID{"m1", "m2"} {
		if n, told := read(at); n != 1 || told != 0 {
			t.Errorf("%s reads %d starts, %d lines told", at, n, told)
		}
	}
	x.lose("m3")
	for _, at := range []sigma.MachineID{"m1", "m2"} {
		eventually(t, "what it told is read at "+string(at), func() bool {
			n, told := read(at)
			return n == 1 && told == 1
		})
	}
	x.mu.Lock()
	x.members = slices.DeleteFunc(x.members, func(m identity.Member) bool { return m.Machine == "m3" })
	x.mu.Unlock()
	x.change(func(*identity.Member) {})
	for _, at := range []sigma.MachineID{"m1", "m2"} {
		eventually(t, "what it told stays at "+string(at), func() bool {
			n, told := read(at)
			return n == 1 && told == 0
		})
	}
}

// Goal: what sigmad answers procs of a realm is in the realm's usage, and so is what a service
// tells, in both lines and metrics; a proc may not tell.
func TestServedIsTold(t *testing.T) {
	m := boot(t)
	worker := m.worker(m.connect(sigma.DefaultRealm))
	for range 50 {
		if _, err := worker.Stat(t.Context(), "/bin"); err != nil {
			t.Fatal(err)
		}
	}
	now := time.Now()
	m.k.accounts.CountServed(now)
	m.k.accounts.CountWork(now, services.S3, 3*time.Second, []sigma.Work{{Realm: sigma.DefaultRealm,
		Requests: 7, In: 70, Out: 700, CPU: time.Second}, {Realm: sigma.SystemRealm, CPU: 2 * time.Second}})
	us := objects[report.RealmUsage](t, worker, "/sys/usage")
	if len(us) != 1 || us[0].Requests < 50 || us[0].Served <= 0 || us[0].ServedIn == 0 || us[0].ServedOut == 0 {
		t.Fatalf("the usage is %+v", us)
	}
	if want := (report.ServicesUse{S3d: report.ServiceUse{Requests: 7, CPU: 1, In: 70,
		Out: 700}}); us[0].Services != want {
		t.Errorf("of services %+v", us[0].Services)
	}
	text, err := m.metrics()
	if want := `sigma_service_requests_total{service="s3d",realm="default"} 7`; err != nil ||
		!strings.Contains(string(text), want) {
		t.Errorf("the metrics lack %s: %v", want, err)
	}
	told := sigmap.Worked{Number: 1, Works: []sigma.Work{{Realm: sigma.DefaultRealm, Requests: 1}}}
	if _, err := m.k.accounts.Worked(t.Context(), nil, told); sigma.KindOf(err) != sigma.KindPermission {
		t.Errorf("a proc told of work: %v", err)
	}
}

type usageLines = computed.Lines[accounts.Cursor]

// copiedLines counts the lines of a ledger's copy.
func copiedLines(c *meter.Copies, one meter.Copy) (n int) {
	after, more := "", true
	for more {
		text, last, left, err := c.Page(one, "", after)
		if err != nil { // there is no copy yet
			return 0
		}
		n += bytes.Count(text, []byte("\n"))
		after, more = last, left
	}
	return n
}
