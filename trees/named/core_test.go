package named

import (
	"context"
	"flag"
	"fmt"
	"maps"
	"os"
	"path/filepath"
	"reflect"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/treeserver"
)

// The scripts in testdata drive the pure core. Each block of commands is one step; below ---- is
// what it answers, what it writes to the store, and what the commands that read see afterwards.
// File ids are printed without the realm's number, as #2.
//
//	put PATH DATA [make] [exist] [append] [if=V] [lease=N] [symlink|endpoint] [perm=0600]
//	create PATH [excl] [trunc] [perm=0600] · mkdir PATH · symlink PATH TARGET · write PATH OFFSET DATA · append PATH DATA
//	truncate PATH SIZE · chmod PATH PERM · rm PATH · mv OLD NEW · lease TTL · renew N · revoke N · expire N
//	clock DURATION      moves the clock before the step
//	drop                forgets the step instead of committing it, as when the store refuses it
//	ls PATH · cat PATH · leases · reload     read after the step; reload reads everything from the store again
//
// DATA of the form N*text stands for N repetitions.
func TestCore(t *testing.T) {
	files, err := filepath.Glob("testdata/*.txt")
	if err != nil || len(files) == 0 {
		t.Fatal("no scripts", err)
	}
	for _, f := range files {
		t.Run(strings.TrimSuffix(filepath.Base(f), ".txt"), func(t *testing.T) { runScript(t, f) })
	}
}

var rewrite = flag.Bool("rewrite", false, "write what the core answers into the scripts")

func runScript(t *testing.T, file string) {
	text, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	c := newCore(t)
	var out strings.Builder
	for i, block := range strings.Split(strings.TrimSpace(string(text)), "\n\n") {
		commands, want, _ := strings.Cut(block, "\n----\n")
		commands = strings.TrimSuffix(commands, "\n----")
		var got string
		if !onlyComments(commands) {
			got = c.step(commands)
			checkTree(t, c.tree, c.store)
		}
		if i > 0 {
			out.WriteString("\n")
		}
		out.WriteString(commands + "\n")
		if got != "" || !onlyComments(commands) {
			out.WriteString("----\n" + got)
		}
		if strings.TrimSpace(got) != strings.TrimSpace(want) && !*rewrite {
			t.Errorf("%s:\n%s\ngot:\n%s\nwant:\n%s", file, commands, got, want)
		}
	}
	if *rewrite {
		if err := os.WriteFile(file, []byte(out.String()), 0o644); err != nil {
			t.Fatal(err)
		}
	}
}

func onlyComments(s string) bool {
	for line := range strings.Lines(s) {
		if !strings.HasPrefix(line, "#") && strings.TrimSpace(line) != "" {
			return false
		}
	}
	return true
}

// core is a tree with a store below, without goroutines.
type core struct {
	t     testing.TB
	tree  *tree
	store *memStore
	guard Revision
	now   time.Time
	drop  bool
}

func newCore(t testing.TB) *core {
	c := &core{t: t, store: newMemStore(), now: time.Unix(1000, 0)}
	rec := realmRecord{number: 1, created: c.now.UnixNano(), nextID: 2, seq: 1}
	var err error
	c.guard, err = c.store.Commit(context.Background(), Batch{Guard: realmKey(testRealm), Puts: []KV{
		{realmKey(testRealm), rec.encode()}, {nodeKey(testRealm, 0, ""), newRoot(rec).encode()}}})
	if err != nil {
		t.Fatal(err)
	}
	c.reload()
	return c
}

func (c *core) reload() {
	srv := &Server{store: c.store, cfg: Config{EntriesMax: 12, BytesMax: 3 * sigma.MiB}}
	l, err := load(context.Background(), srv, testRealm)
	if err != nil {
		c.t.Fatal(err)
	}
	c.tree, c.guard = l.tree, l.guard
	for _, l := range c.tree.leases {
		l.deadline = c.now.Add(l.ttl)
	}
}

func (c *core) step(commands string) string {
	var out strings.Builder
	var reads []string
	s := newStep(c.tree)
	c.drop = false
	for line := range strings.Lines(commands) {
		w := strings.Fields(line)
		switch {
		case len(w) == 0 || w[0] == "#":
		case slices.Contains([]string{"ls", "cat", "leases", "reload"}, w[0]):
			reads = append(reads, strings.TrimSpace(line))
		case w[0] == "drop":
			c.drop = true
		case w[0] == "clock":
			c.now = c.now.Add(c.duration(w[1]))
		default:
			before := fmt.Sprintf("%v", s.snapshot())
			r := c.command(s, w).apply(s, c.now)
			if after := fmt.Sprintf("%v", s.snapshot()); r.err != nil && after != before {
				c.t.Errorf("%s was refused and yet changed something", line)
			}
			fmt.Fprintln(&out, printReply(r))
		}
	}
	puts, deletes, ok := s.batch()
	switch {
	case c.drop:
		fmt.Fprintln(&out, "dropped")
	case ok:
		rev, err := c.store.Commit(context.Background(), Batch{Guard: realmKey(testRealm), GuardAt: c.guard, Puts: puts,
			Deletes: deletes})
		if err != nil {
			c.t.Fatal(err)
		}
		c.guard = rev
		printBatch(&out, puts, deletes)
	}
	if !c.drop {
		c.tree.merge(s)
	}
	for _, r := range reads {
		c.read(&out, strings.Fields(r))
	}
	return out.String()
}

// snapshot is what of a step must not change when a mutation is refused.
func (s *step) snapshot() []any {
	return []any{s.rec.seq, len(s.nodes), len(s.names), len(s.leases), s.stored, s.count, s.bytes}
}

func (c *core) duration(s string) time.Duration {
	d, err := time.ParseDuration(s)
	if err != nil {
		c.t.Fatal(err)
	}
	return d
}

func number(t testing.TB, s string, base int) uint64 {
	v, err := strconv.ParseUint(s, base, 64)
	if err != nil {
		t.Fatal(err)
	}
	return v
}

// parent resolves all but the last component; a missing directory is id 0.
func parent(s view, path string) (uint64, string) {
	dir, name := filepath.Split(path)
	return resolve(s, dir), name
}

func resolve(s view, path string) uint64 {
	at := uint64(1)<<fileNumberBits | 1
	for _, n := range strings.FieldsFunc(path, func(r rune) bool { return r == '/' }) {
		at = s.child(at, n)
	}
	return at
}

func testData(s string) []byte {
	if n, text, ok := strings.Cut(s, "*"); ok {
		count, _ := strconv.Atoi(n)
		return []byte(strings.Repeat(text, count))
	}
	if s == "-" {
		return nil
	}
	return []byte(strings.ReplaceAll(s, "_", " "))
}

func (c *core) command(s *step, w []string) mutation {
	has := func(opt string) bool { return slices.Contains(w, opt) }
	value := func(opt string, base int) uint64 {
		for _, a := range w {
			if v, ok := strings.CutPrefix(a, opt+"="); ok {
				return number(c.t, v, base)
			}
		}
		return 0
	}
	full := func(n uint64) sigma.LeaseID { return sigma.LeaseID(1<<fileNumberBits | n) }
	dir, name := parent(s, w[1])
	switch w[0] {
	case "put":
		o := sigma.PutOptions{MustMake: has("make"), MustExist: has("exist"), Append: has("append"),
			IfVersion: sigma.Version(value("if", 10)), Perm: uint32(value("perm", 8))}
		if n := value("lease", 10); n != 0 {
			o.Lease = full(n)
		}
		if has("symlink") {
			o.Kind = sigma.KindSymlink
		}
		if has("endpoint") {
			o.Kind = sigma.KindEndpoint
		}
		names, _ := sigma.ParsePath(w[1])
		return putOp{from: c.tree.rec.rootID(), names: names, data: testData(w[2]), o: o, by: asOwner}
	case "create":
		return createOp{dir: dir, name: name, kind: sigma.KindFile, perm: uint32(value("perm", 8)), open: !has("excl"),
			truncate: has("trunc"), needs: treeserver.MayWrite, by: asOwner}
	case "mkdir":
		return createOp{dir: dir, name: name, kind: sigma.KindDir, perm: 0o755}
	case "symlink":
		return createOp{dir: dir, name: name, kind: sigma.KindSymlink, perm: 0o777, data: []byte(w[2])}
	case "write":
		return writeOp{id: resolve(s, w[1]), offset: number(c.t, w[2], 10), data: testData(w[3])}
	case "append":
		return writeOp{id: resolve(s, w[1]), atEnd: true, offset: 1 << 63, data: testData(w[2])}
	case "truncate":
		return resizeOp{resolve(s, w[1]), number(c.t, w[2], 10), asOwner}
	case "chmod":
		perm := uint32(number(c.t, w[2], 8))
		return statOp{resolve(s, w[1]), sigma.StatChange{Perm: &perm}, asOwner}
	case "rm":
		return removeOp{dir, name, asOwner}
	case "mv":
		newDir, newName := parent(s, w[2])
		return renameOp{dir, name, newDir, newName, asOwner}
	case "lease":
		return grantOp{ttl: c.duration(w[1])}
	case "renew":
		return renewOp{full(number(c.t, w[1], 10))}
	case "revoke":
		return endOp{id: full(number(c.t, w[1], 10))}
	case "expire":
		return endOp{id: full(number(c.t, w[1], 10)), expired: true}
	}
	c.t.Fatalf("unknown command %q", w)
	return nil
}

func short(id uint64) string { return fmt.Sprintf("#%d", id&fileNumberMax) }

func printReply(r reply) string {
	switch {
	case r.err != nil:
		return fmt.Sprintf("%v (%v)", r.err, sigma.KindOf(r.err))
	case r.stopped != nil:
		return fmt.Sprintf("stopped after %d at %v to %q", r.stopped.Walked, r.stopped.Kind, r.stopped.Target)
	case r.lease != 0:
		return "ok lease " + short(uint64(r.lease))
	}
	return fmt.Sprintf("ok %v %s version %d", r.id.Kind, short(r.id.Path), r.id.Version)
}

func printBatch(out *strings.Builder, puts []KV, deletes []string) {
	for _, kv := range puts {
		fmt.Fprintf(out, "  put %s", printKey(kv.Key))
		switch kv.Key[0] {
		case 't':
			n, err := decodeNode(kv.Value)
			if err != nil {
				fmt.Fprintln(out, err)
				continue
			}
			fmt.Fprintf(out, ": %v %s perm %o version %d pos %d", n.kind, short(n.id), n.perm, n.version, n.pos)
			if n.lease != 0 {
				fmt.Fprintf(out, " lease %s", short(uint64(n.lease)))
			}
			if n.kind != sigma.KindDir {
				fmt.Fprintf(out, " %s", printData(n.data))
			}
		case 'r':
			r, _ := decodeRealm(kv.Value)
			fmt.Fprintf(out, ": next #%d seq %d", r.nextID, r.seq)
		case 'l':
			l, _ := decodeLease(kv.Value)
			fmt.Fprintf(out, ": %v", l.ttl)
		}
		fmt.Fprintln(out)
	}
	for _, k := range deletes {
		fmt.Fprintf(out, "  delete %s\n", printKey(k))
	}
}

func printKey(key string) string {
	w := strings.SplitN(key, "/", 4)
	if len(w) > 2 {
		id, _ := parseHex16(w[2])
		w[2] = short(id)
	}
	return strings.Join(w, "/")
}

func printData(b []byte) string {
	if len(b) > 40 {
		return fmt.Sprintf("%q... (%d bytes)", b[:8], len(b))
	}
	return fmt.Sprintf("%q", b)
}

func (c *core) read(out *strings.Builder, w []string) {
	switch w[0] {
	case "reload":
		c.reload()
		fmt.Fprintln(out, "reloaded")
	case "leases":
		for _, id := range slices.Sorted(maps.Keys(c.tree.leases)) {
			l := c.tree.leases[id]
			fmt.Fprintf(out, "lease %s of %v ends in %v, %d files\n", short(uint64(id)), l.ttl, l.deadline.Sub(c.now),
				l.count)
		}
	case "ls":
		cell := c.tree.cells[resolve(c.tree, w[1])]
		fmt.Fprintf(out, "%s: version %d, %d entries\n", w[1], cell.n.version, cell.n.count)
		entries, _, _ := c.tree.list(cell.dir, 0, 100)
		for _, e := range entries {
			fmt.Fprintf(out, "  %s %v %s version %d size %d\n", e.Name, e.ID.Kind, short(e.ID.Path), e.ID.Version,
				e.Size)
		}
	case "cat":
		fmt.Fprintln(out, printData(c.tree.node(resolve(c.tree, w[1])).data))
	}
}

// checkTree checks that a tree agrees with itself and with what is stored.
func checkTree(t testing.TB, tr *tree, store Store) {
	t.Helper()
	srv := &Server{store: &readOnlyStore{store}, cfg: Config{EntriesMax: int(tr.limits.Names),
		BytesMax: tr.limits.Bytes}}
	l, err := load(context.Background(), srv, tr.realm)
	if err != nil {
		t.Fatal(err)
	}
	want := l.tree
	if tr.bytes != want.bytes || tr.rec.nextID != want.rec.nextID || tr.rec.seq != want.rec.seq ||
		len(tr.cells) != len(want.cells) {
		t.Fatalf("tree has %d bytes, %+v, %d files; the store has %d, %+v, %d", tr.bytes, tr.rec, len(tr.cells),
			want.bytes, want.rec, len(want.cells))
	}
	for id, c := range want.cells {
		got := tr.cells[id]
		if got == nil || !reflect.DeepEqual(normal(got.n), normal(c.n)) {
			t.Fatalf("file %s is %+v, the store has %+v", short(id), got.n, c.n)
		}
		if c.dir != nil {
			checkDirs(t, tr, want, got, c)
		}
	}
	if len(tr.leases) != len(want.leases) {
		t.Fatalf("%d leases, the store has %d", len(tr.leases), len(want.leases))
	}
	for id, l := range want.leases {
		if got := tr.leases[id]; got == nil || got.ttl != l.ttl || got.count != l.count ||
			!maps.Equal(got.files, l.files) {
			t.Fatalf("lease %s is %+v, the store has %+v", short(uint64(id)), got, l)
		}
	}
}

func normal(n *node) node {
	c := *n
	if len(c.data) == 0 {
		c.data = nil
	}
	return c
}

func checkDirs(t testing.TB, tr, want *tree, got, stored *cell) {
	t.Helper()
	if !maps.Equal(got.dir.names, stored.dir.names) {
		t.Fatalf("directory %s has %v, the store has %v", short(got.n.id), got.dir.names, stored.dir.names)
	}
	a, _, _ := tr.list(got.dir, 0, 1<<30)
	b, _, _ := want.list(stored.dir, 0, 1<<30)
	if !slices.Equal(a, b) {
		t.Fatalf("directory %s lists %v, the store has %v", short(got.n.id), a, b)
	}
	holes := 0
	for _, p := range got.dir.order {
		if p.id == 0 {
			holes++
		}
	}
	if holes != got.dir.holes || got.n.count != len(a) {
		t.Fatalf("directory %s has %d holes and %d entries, and counts %d and %d", short(got.n.id), holes, len(a),
			got.dir.holes, got.n.count)
	}
}

// readOnlyStore lets a tree be loaded beside its leader.
type readOnlyStore struct{ Store }

func (readOnlyStore) Commit(context.Context, Batch) (Revision, error) { return 1, nil }
