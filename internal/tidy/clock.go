package tidy

import (
	"go/ast"
	"go/token"
	"path"
	"slices"
)

// timed are the packages that decide by time: leases, beats, deadlines, retries, retention. There a
// moment is compared with another of the same process, both as time.Now gave them: their difference
// is of the monotonic clock, which nobody sets. A moment that was a number, or that came over a
// wire, has lost that reading, and what is measured from it jumps when somebody sets the clock.
var timed = []string{
	"trees/named", "trees/named/client", "trees/named/client/cache", "wire/session", "trees/treeserver",
	"trees/resolve", "sdk", "trees/fence", "kernel", "sched/schedd", "sched/besched", "sched/lcsched",
	"sched/initd", "kernel/machines", "kernel/link", "kernel/identity", "kernel/dialproxy", "wire/poller",
	"trees/changeboard", "kernel/proclog", "kernel/cluster", "kernel/computed", "kernel/connect",
	"kernel/delayed", "kernel/eventlog", "kernel/launchers", "kernel/memo", "kernel/meter", "kernel/placement",
	"kernel/procs", "kernel/progtree", "kernel/registrations", "kernel/rootfs", "kernel/services",
	"kernel/sessions", "kernel/shares", "kernel/viewfs",
}

// wallClock are the files of these packages that turn moments into numbers or back, and why nothing
// is decided by these.
var wallClock = map[string]string{
	"trees/named/credentials.go":   "when a credential expires, which is a matter of the hour",
	"trees/named/lease.go":         "modification times",
	"trees/named/mutate.go":        "modification times",
	"trees/named/put.go":           "modification times",
	"trees/named/record.go":        "modification times",
	"trees/named/realmsnapshot.go": "modification times",
	"trees/named/server.go":        "when a realm was made, which is shown, and tells it from others of its name",
	"wire/session/remote.go":       "modification times",
	"trees/treeserver/handle.go":   "modification times",
	"trees/treeserver/callable.go": "modification times",
	"kernel/viewfs/viewfile.go":    "modification times",
	"kernel/meter/ledger.go":       "which hour it is, in which something is counted",
	"kernel/meter/copies.go":       "which hour it is, in which something was counted, and when it was told, which is shown",
	"kernel/meter/copyread.go":     "which hour it is, in which something was counted",
	"kernel/meter/created.go":      "when a realm was created, which tells it from others of its name",
	"kernel/meter/pages.go":        "when a proc began and ended, which is shown",
	"kernel/eventlog/eventlog.go":  "numbers of events, which begin with the time",
	"kernel/computed/dir.go":       "modification times",
	"kernel/computed/lines.go":     "modification times",
	"kernel/rootfs/rootfs.go":      "modification times",
	"sched/besched/service.go":     "modification times",
	"sched/lcsched/service.go":     "modification times",
	"kernel/machines/change.go":    "when a token ends, which is a matter of the hour",
	"kernel/identity/subject.go":   "when a certificate ends, which is a matter of the hour",
}

// CheckClock finds where packages that decide by time lose a moment's monotonic reading.
func CheckClock(t *Tree) []Finding {
	var found []Finding
	t.eachFile(func(p *Package, f *File) {
		if f.Test || !slices.Contains(timed, p.Dir) || wallClock[path.Join(p.Dir, path.Base(f.Name))] != "" {
			return
		}
		report := func(what string, pos token.Pos) {
			found = append(found, Finding{"clock", f.Name, t.line(pos),
				what +
					" loses the monotonic reading of a moment: keep time.Time, or a duration since a start; if it is " +
					"only shown or stored, say so in internal/tidy/clock.go"})
		}
		calls(f.AST, "time", func(name string, pos token.Pos) {
			if slices.Contains([]string{"Unix", "UnixMilli", "UnixMicro", "Date", "Parse"}, name) {
				report("time."+name, pos)
			}
		})
		ast.Inspect(f.AST, func(n ast.Node) bool {
			call, ok := n.(*ast.CallExpr)
			if !ok {
				return true
			}
			sel, ok := call.Fun.(*ast.SelectorExpr)
			if !ok {
				return true
			}
			numbers := []string{"Unix", "UnixNano", "UnixMilli", "UnixMicro", "UTC", "Local"}
			zero := len(call.Args) == 1 && sel.Sel.Name == "Round"
			if zero {
				l, ok := call.Args[0].(*ast.BasicLit)
				zero = ok && l.Value == "0"
			}
			if zero || len(call.Args) == 0 && slices.Contains(numbers, sel.Sel.Name) {
				report(sel.Sel.Name, sel.Sel.Pos())
			}
			return true
		})
	})
	return found
}
