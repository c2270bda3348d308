package tidy

import (
	"fmt"
	"slices"
	"strings"
)

// Layer is one row of the layer table.
type Layer struct {
	Name string
	// Dirs are the directories of its packages; those below belong to it too.
	Dirs []string
	// Ordered allows its packages to import those of Dirs before theirs: Dirs are the lowest first.
	Ordered bool
	// Sideways allows its packages to import one another (Go forbids circles).
	Sideways bool
	// Apart are names of lower layers that its packages may not import all the same.
	Apart []string
	// Why is the reason of the row, for people who break it.
	Why string
}

// Layers is the layer table, lowest first. A package imports packages of lower layers only; tests
// may import any that are not commands. ARCHITECTURE.md shows the same table.
var Layers = []Layer{
	{Name: "vocabulary", Dirs: []string{"sigma", "retry"},
		Why: "everybody depends on the words, so they depend on nobody"},
	{Name: "codec", Dirs: []string{"sigmap"},
		Why: "the wire format is bytes in, messages out; it knows no connection"},
	{Name: "kits", Dirs: []string{"atomicfile", "bulk", "changeboard", "diskspace", "fence", "hostdir", "nowait",
		"view", "inflight", "ring", "session", "treekit", "dirtree", "namespace"}, Ordered: true,
		Why: "what clients, servers and trees are made of knows the protocol and not what is served"},
	{Name: "trees", Dirs: []string{"memfs", "ux", "s3", "db", "named", "treetest"},
		Why: "a tree serves its own state; trees meet only in a name space, so that each can run, fail and be tested " +
			"alone"},
	{Name: "sdk", Dirs: []string{"sdk", "call"},
		Why: "what is linked into every proc must start in microseconds"},
	{Name: "kernel", Dirs: []string{"binfs", "decision", "dialproxy", "identity", "launch", "names", "readiness",
		"state", "besched", "lcsched", "link", "machines", "output", "hostsetup", "schedd", "initd", "kernel", "sim"},
		Ordered: true,
		Why:     "the kernel starts and connects procs; nothing that a proc links may need it"},
	{Name: "toolkit", Dirs: []string{"lib/semaphore", "lib/barrier", "lib/queue", "lib/once", "lib/group",
		"lib/schedule", "lib/shard"}, Apart: []string{"kernel", "trees", "kits"},
		Why: "a tenant could have written these: each is a small package over the SDK, and needs none of the others"},
	{Name: "fleet", Dirs: []string{"lib/fleet"}, Apart: []string{"kernel", "trees", "kits"},
		Why: "services are fleets of procs, and a fleet knows no more of the system than any tenant's program"},
	{Name: "apps", Dirs: []string{"apps", "mount", "files"},
		Why: "an app uses what any tenant may use: the SDK and the vocabulary"},
	{Name: "commands", Dirs: []string{"cmd", "examples", "bench", "test", "internal"}, Sideways: true,
		Why: "flags, exits and the choice of implementations live at the very top, where nothing can depend on them"},
}

// kernelOrder are the packages below kernel, lowest first. Each imports those before it only, so
// that a topic can be read, tested and replaced without what uses it.
var kernelOrder = []string{"kernel/memo", "kernel/delayed", "kernel/limits", "kernel/shares", "kernel/progtree",
	"kernel/eventlog", "kernel/viewfs", "kernel/computed", "kernel/meter", "kernel/roles", "kernel/procs",
	"kernel/launchers", "kernel/cluster", "kernel/placement", "kernel/services", "kernel/reach", "kernel/roster",
	"kernel/history", "kernel/quotas", "kernel/past", "kernel/runner", "kernel/remote", "kernel/registrations",
	"kernel/connect", "kernel/farfile", "kernel/talk", "kernel/accounts", "kernel/outside", "kernel/guests",
	"kernel/realms", "kernel/metrics", "kernel/sessions", "kernel/incoming", "kernel/endpoints", "kernel/uxfs",
	"kernel/procfs", "kernel/sysfs", "kernel/rootfs", "kernel"}

// kernelProblem says what is wrong with an import of one package of the kernel by another, or "".
func kernelProblem(from, to string, test bool) string {
	own, other := slices.Index(kernelOrder, from), slices.Index(kernelOrder, to)
	if test || own >= 0 && other >= 0 && other < own {
		return ""
	}
	return fmt.Sprintf("%s imports %s, but of the packages of the kernel each imports only those before it in "+
		"kernelOrder: declare a small interface or a function of its Config, and let the kernel fill it in", from, to)
}

// layerOf gives the index of dir's layer, or -1.
func layerOf(dir string) int {
	for i, l := range Layers {
		if within(dir, l.Dirs...) {
			return i
		}
	}
	return -1
}

// CheckLayers finds imports that do not go down, imports of commands, and packages that have no
// layer.
func CheckLayers(t *Tree) []Finding {
	var found []Finding
	for _, p := range t.Packages {
		own := layerOf(p.Dir)
		if own < 0 {
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
	own, other := layerOf(from), layerOf(to)
	unit := func(dir string) string { // the directory right below its layer's: packages below it are one thing
		for _, d := range Layers[layerOf(dir)].Dirs {
			if rest, ok := strings.CutPrefix(dir, d+"/"); ok && Layers[layerOf(dir)].Name != "commands" && d != "apps" {
				return d
			} else if ok {
				return d + "/" + strings.SplitN(rest, "/", 2)[0]
			}
		}
		return dir
	}
	switch {
	case other < 0:
		return fmt.Sprintf("imports %s, which has no layer", to)
	case unit(from) == "kernel" && unit(to) == "kernel" && from != to:
		return kernelProblem(from, to, test)
	case unit(from) == unit(to):
		return ""
	case !test && slices.Contains(Layers[own].Apart, Layers[other].Name):
		return fmt.Sprintf("%s (%s) imports %s (%s), which it must do without. Of %s: %s.", from, Layers[own].Name, to,
			Layers[other].Name, Layers[own].Name, Layers[own].Why)
	case within(to, "cmd"):
		return fmt.Sprintf(
			"imports %s: commands are imported by nobody, so that flags and exits stay theirs; move what you need "+
				"into a package below", to)
	case test || other < own || other == own && Layers[own].Sideways:
		return ""
	case other == own && Layers[own].Ordered:
		dirs := Layers[own].Dirs
		if slices.Index(dirs, unit(to)) < slices.Index(dirs, unit(from)) {
			return ""
		}
		return fmt.Sprintf("%s imports %s, but of the row %s each imports only those before it (Layers)", from, to,
			Layers[own].Name)
	}
	return fmt.Sprintf("%s (layer %d, %s) imports %s (layer %d, %s), but imports go down only. Of %s: %s. Of %s: %s. "+
		"Take an interface of sigma/ (or declare a small one here) and inject the implementation in cmd/.",
		from, own, Layers[own].Name, to, other, Layers[other].Name, Layers[own].Name, Layers[own].Why,
		Layers[other].Name, Layers[other].Why)
}
