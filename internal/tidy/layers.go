package tidy

import (
	"fmt"
	"slices"
	"strings"
)

// Layer is one row of the layer table.
type Layer struct {
	Name string
	// Dirs are its packages, those below them included. Without an order each directory right below
	// one of them stands for itself.
	Dirs []string
	// Ordered allows its packages to import those of Dirs before theirs: Dirs are the lowest first.
	Ordered bool
	// Apart are names of lower layers that its packages may not import all the same.
	Apart []string
	// Why is the reason of the row, for people who break it.
	Why string
}

// Layers is the layer table, lowest first. A package imports packages of lower layers only; tests
// may import any that are not commands. ARCHITECTURE.md shows the same table.
var Layers = []Layer{
	{Name: "vocabulary", Dirs: []string{"sigma", "sigma/retry"}, Ordered: true,
		Why: "everybody depends on the words, so they depend on nobody"},
	{Name: "wire", Dirs: []string{"wire/rawio", "wire/inflight", "wire/poller", "wire/ring", "wire/sigmap",
		"wire/session", "wire/filestream", "wire/launch"}, Ordered: true,
		Why: "messages and the connections that carry them know nothing of what is served"},
	{Name: "kits", Dirs: []string{"trees/atomicfile", "trees/changeboard", "trees/digest", "trees/diskspace",
		"trees/fence", "trees/hostdir", "trees/view", "trees/treeserver", "trees/resolve", "trees/diskfs"},
		Ordered: true,
		Why:     "what trees are made of knows the protocol and not what is served"},
	{Name: "trees", Dirs: []string{"trees"}, // each package below it is one tree
		Why: "a tree serves its own state; trees meet only in a name space, so that each can run, fail and be tested " +
			"alone"},
	{Name: "sdk", Dirs: []string{"sdk"},
		Why: "what is linked into every proc must start in microseconds"},
	{Name: "sched", Dirs: []string{"sched/decision", "sched/besched", "sched/lcsched", "sched/schedd", "sched/initd",
		"sched/sim"}, Ordered: true, Apart: []string{"trees", "sdk"},
		Why: "who runs where is decided by pure cores, which know neither machines' sockets nor trees"},
	{Name: "kernel", Dirs: []string{"kernel/report", "kernel/identity", "kernel/dialproxy", "kernel/binfs",
		"kernel/machines", "kernel/link", "kernel/proclog", "kernel/hostsetup",
		"kernel/memo", "kernel/delayed", "kernel/limits", "kernel/shares", "kernel/progtree",
		"kernel/eventlog", "kernel/viewfs", "kernel/computed", "kernel/meter", "kernel/roles", "kernel/procs",
		"kernel/launchers", "kernel/cluster", "kernel/placement", "kernel/services", "kernel/reach", "kernel/roster",
		"kernel/history", "kernel/quotas", "kernel/past", "kernel/runner", "kernel/remote", "kernel/registrations",
		"kernel/connect", "kernel/farfile", "kernel/talk", "kernel/accounts", "kernel/outside", "kernel/guests",
		"kernel/realms", "kernel/metrics", "kernel/sessions", "kernel/incoming", "kernel/endpoints", "kernel/uxfs",
		"kernel/procfs", "kernel/sysfs", "kernel/rootfs", "kernel"}, Ordered: true, Apart: []string{"sdk"},
		Why: "the kernel starts and connects procs, a topic a package, so that each can be read, tested and replaced " +
			"without what uses it; nothing that a proc links may need it"},
	{Name: "toolkit", Dirs: []string{"lib"}, // each package below it is one tool
		Apart: []string{"kernel", "sched", "trees", "kits"},
		Why:   "a tenant could have written these: each is a small package over the SDK, and needs none of the others"},
	{Name: "fleet", Dirs: []string{"lib/fleet"}, Ordered: true, Apart: []string{"kernel", "sched", "trees", "kits"},
		Why: "services are fleets of procs, and a fleet knows no more of the system than any tenant's program"},
	{Name: "apps", Dirs: []string{"apps"}, Apart: []string{"kernel", "sched"},
		Why: "an app uses what any tenant may use: the SDK and the vocabulary"},
	{Name: "development", Dirs: []string{"internal/netlab", "internal/testenv", "internal", "bench", "examples"},
		Ordered: true, Why: "what only those who work on sigmaOS run"},
	{Name: "commands", Dirs: []string{"cmd", "test"},
		Why: "flags, exits and the choice of implementations live at the very top, where nothing can depend on them"},
}

// place gives the index of dir's layer and what dir belongs to in it: the longest of its Dirs that
// holds dir or, where the layer has no order, the directory right below that. The index is -1 if
// dir has no layer.
func place(dir string) (layer int, unit string) {
	layer = -1
	longest := ""
	for i, l := range Layers {
		for _, d := range l.Dirs {
			if within(dir, d) && len(d) > len(longest) {
				layer, longest = i, d
			}
		}
	}
	rest, below := strings.CutPrefix(dir, longest+"/")
	if layer < 0 || !below || Layers[layer].Ordered {
		return layer, longest
	}
	first, _, _ := strings.Cut(rest, "/")
	return layer, longest + "/" + first
}

// CheckLayers finds imports that do not go down, imports of commands, and packages that have no
// layer.
func CheckLayers(t *Tree) []Finding {
	var found []Finding
	for _, p := range t.Packages {
		if own, _ := place(p.Dir); own < 0 {
			found = append(found, Finding{"layers", p.Dir, 0,
				"this package has no layer: decide which one, and add it to Layers in internal/tidy/layers.go and to " +
					"ARCHITECTURE.md"})
			continue
		}
		for _, f := range p.Files {
			for _, im := range f.AST.Imports {
				target := strings.Trim(im.Path.Value, `"`)
				if target != Module && !strings.HasPrefix(target, Module+"/") {
					continue
				}
				dir := strings.TrimPrefix(strings.TrimPrefix(target, Module), "/")
				if msg := importProblem(p.Dir, dir, f.Test); msg != "" {
					found = append(found, Finding{"layers", f.Name, t.line(im.Pos()), msg})
				}
			}
		}
	}
	return found
}

// importProblem says what is wrong with an import of package to by package from, or "".
func importProblem(from, to string, test bool) string {
	own, unit := place(from)
	other, target := place(to)
	switch {
	case other < 0:
		return fmt.Sprintf("imports %s, which has no layer", to)
	case unit == target && (from == unit || !crowded(unit)):
		return ""
	case within(to, "cmd"):
		return fmt.Sprintf(
			"imports %s: commands are imported by nobody, so that flags and exits stay theirs; move what you need "+
				"into a package below", to)
	case test:
		return ""
	case slices.Contains(Layers[own].Apart, Layers[other].Name):
		return fmt.Sprintf("%s (%s) imports %s (%s), which it must do without. Of %s: %s.", from, Layers[own].Name, to,
			Layers[other].Name, Layers[own].Name, Layers[own].Why)
	case other < own:
		return ""
	case other == own && Layers[own].Ordered:
		dirs := Layers[own].Dirs
		if slices.Index(dirs, target) < slices.Index(dirs, unit) && (from == unit || !crowded(unit)) {
			return ""
		}
		return fmt.Sprintf("%s imports %s, but of the row %s each imports only those before it (Layers): declare a "+
			"small interface or a function of its Config, and let the package above fill it in", from, to,
			Layers[own].Name)
	}
	return fmt.Sprintf("%s (layer %d, %s) imports %s (layer %d, %s), but imports go down only. Of %s: %s. Of %s: %s. "+
		"Take an interface of sigma/ (or declare a small one here) and inject the implementation in cmd/.",
		from, own, Layers[own].Name, to, other, Layers[other].Name, Layers[own].Name, Layers[own].Why,
		Layers[other].Name, Layers[other].Why)
}

// crowded says whether the packages below unit have places of their own in its layer, so that a new
// one needs a place too.
func crowded(unit string) bool {
	return slices.ContainsFunc(Layers, func(l Layer) bool {
		return l.Ordered && slices.ContainsFunc(l.Dirs, func(d string) bool { return strings.HasPrefix(d, unit+"/") })
	})
}
