package kernel

import (
	"fmt"
	"slices"
	"strings"
	"testing"

	"sigmaos.dev/kernel/sessions"
	"sigmaos.dev/kernel/viewfs"

	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

// Goal: a view goes with a proc to the machine that runs it, and to its children wherever they run;
// who has it sees them there, acts on them, and on nobody else.
func TestViewElsewhere(t *testing.T) {
	x := newThree(t)
	ctx := t.Context()
	write(t, x.c["m1"], "/d/", "/d/f", "/secret")
	x.burst("m1", 1) // which puts the program there; it is nobody's kin
	stranger := x.on("m1")
	ids, err := x.c["m1"].Spawn(ctx, sigma.Descriptor{Program: "/bin/x", Memory: 16 * sigma.MiB,
		View: viewOf("/bin=/bin:ro", "/d=/d:rw")})
	if err != nil {
		t.Fatal(err)
	}
	if err := x.c["m1"].WaitStart(ctx, ids[0]); err != nil {
		t.Fatal(err)
	}
	placed := func(id sigma.ProcID) sigma.MachineID {
		for m, on := range x.on("m1") {
			if slices.Contains(on, id) {
				return m
			}
		}
		return ""
	}
	home := placed(ids[0])
	if len(stranger[home]) > 0 {
		<-x.m[home].procs // the stranger, which came before
	}
	parent := x.m[home].started(ids[0])
	var kids []sigma.ProcID
	for range 30 {
		one, err := parent.spawn(ctx, sigma.Descriptor{Program: "/bin/x", Memory: 16 * sigma.MiB})
		if err != nil {
			t.Fatal(err)
		}
		kids = append(kids, one...)
	}
	for _, id := range kids {
		if err := parent.about(ctx, sigmap.CallWaitStart.Name, id); err != nil {
			t.Fatal(err)
		}
	}
	if got, err := parent.list(ctx); len(got) != 31 || err != nil {
		t.Errorf("it lists %d, %v", len(got), err)
	}
	if es, err := parent.ReadDir(ctx, "/proc"); len(es) != 31 || err != nil {
		t.Errorf("/proc has %d, %v", len(es), err)
	}
	far := sigma.MachineID("")
	for m, on := range x.on("m1") {
		if m != home && len(on) > len(stranger[m]) {
			far = m
		}
	}
	if far == "" {
		t.Fatal("all run on one machine")
	}
	if len(stranger[far]) > 0 {
		<-x.m[far].procs
	}
	kid := x.m[far].started("")
	if _, _, err := kid.Get(ctx, "/d/f"); err != nil {
		t.Errorf("a child elsewhere does not see what its view shows: %v", err)
	}
	if _, _, err := kid.Get(ctx, "/secret"); sigma.KindOf(err) != sigma.KindNotFound {
		t.Errorf("a child elsewhere reads a secret: %v", err)
	}
	i := slices.IndexFunc(kids, func(id sigma.ProcID) bool { return placed(id) == far })
	if caps, err := x.c["m1"].Caps(ctx, kids[i]); err != nil || caps.All || len(caps.View) != 2 ||
		!slices.Equal(caps.Kin, ids) || caps.Machine != far {
		t.Errorf("the child may reach %+v, %v", caps, err)
	}
	if err := parent.about(ctx, sigmap.CallKill.Name, kids[i]); err != nil {
		t.Errorf("it cannot kill its child: %v", err)
	}
	for _, id := range slices.Concat(stranger["m1"], stranger["m2"], stranger["m3"]) {
		if err := parent.about(ctx, sigmap.CallKill.Name, id); sigma.KindOf(err) != sigma.KindNotFound {
			t.Errorf("it kills a stranger: %v", err)
		}
	}
}

// Goal: what a proc with a view walks through by sigmad is bounded: endpoints on one path, and
// trees at a time.
func TestViewBounds(t *testing.T) {
	c := newCGI(t)
	ctx := t.Context()
	child := c.m.startProg(sigma.Descriptor{View: viewOf("/workdir=/workdir:rw")})
	circle := &lying{}
	circle.text = child.serveTree(t, circle).String()
	if _, err := child.Put(ctx, "/workdir/circle", []byte(circle.text),
		sigma.PutOptions{Kind: sigma.KindEndpoint}); err != nil {
		t.Fatal(err)
	}
	if _, err := child.Stat(ctx, "/workdir/circle"+strings.Repeat("/x",
		viewfs.HopsMost+1)); sigma.KindOf(err) != sigma.KindLoop {
		t.Errorf("a path of endpoints without end: %v", err)
	}
	var err error
	for i := 0; i <= viewfs.EnteredMost && err == nil; i++ {
		path := fmt.Sprintf("/workdir/t%d", i)
		if err = publish(ctx, child, path, child.serveTree(t, &lying{text: "nothing"})); err != nil {
			t.Fatal(err)
		}
		_, err = child.Stat(ctx, path)
	}
	if sigma.KindOf(err) != sigma.KindBusy {
		t.Errorf("trees without end: %v", err)
	}
	if caps, err := c.m.connect(sigma.DefaultRealm).Caps(ctx, child.id); err != nil ||
		caps.Entered != viewfs.EnteredMost || len(caps.Listens) != viewfs.EnteredMost+1 || caps.All {
		t.Errorf("it has %+v, %v", caps, err)
	}
	child.p.exit(0)
	eventually(t, "its sessions with servers have ended", func() bool {
		return len(c.m.k.sessions.Open(func(s *sessions.Session) bool { return s.Principal.Proc == child.id })) == 0
	})
}
