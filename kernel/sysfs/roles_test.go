package sysfs

import (
	"go/ast"
	"go/parser"
	"go/token"
	"iter"
	"maps"
	"path/filepath"
	"slices"
	"strconv"
	"testing"

	"sigmaos.dev/kernel/endpoints"
	"sigmaos.dev/kernel/roles"
	"sigmaos.dev/kernel/sessions"
	"sigmaos.dev/sigma"
	"sigmaos.dev/wire/sigmap"
)

// callNames are the methods that a file of Go declares as constants named Call... .
func callNames(t *testing.T, path string) (out []string) {
	t.Helper()
	f, err := parser.ParseFile(token.NewFileSet(), path, nil, 0)
	if err != nil {
		t.Fatal(err)
	}
	ast.Inspect(f, func(n ast.Node) bool {
		if v, ok := n.(*ast.ValueSpec); ok && len(v.Values) == 1 && len(v.Names) == 1 && len(v.Names[0].Name) > 4 &&
			v.Names[0].Name[:4] == "Call" {
			value := v.Values[0]
			if m, ok := value.(*ast.CompositeLit); ok { // a sigmap.Method
				value = m.Elts[0].(*ast.KeyValueExpr).Value
			}
			if l, ok := value.(*ast.BasicLit); ok {
				name, err := strconv.Unquote(l.Value)
				if err != nil {
					t.Fatal(err)
				}
				out = append(out, name)
			}
		}
		return true
	})
	if len(out) == 0 {
		t.Fatalf("%s declares %d methods", path, len(out))
	}
	return out
}

// Goal: every file of /sys has its row in the table of permissions, and every method of a file that
// a credential shows at all. What is in no row is refused: of machines, names and the machine
// nothing is allowed.
func TestRolesTable(t *testing.T) {
	who := sigma.Principal{Realm: "default", System: true}
	r := scope{&FS{}, sessions.Scope{Session: sessions.New(sessions.Config{}).Of(who), Realm: "default"}}
	for _, name := range r.names() {
		if _, known := roles.Permissions[name]; !known {
			t.Errorf("/sys/%s has no row in permissions (kernel/roles): decide who may use it", name)
		}
	}
	elsewhere := []string{ // methods of other files than those of /sys, or of files of which no method is allowed
		sigmap.CallStatus.Name, sigmap.CallLeave.Name, sigmap.CallDown.Name, sigmap.CallServer.Name,
		sigmap.CallSetStore.Name, sigmap.CallStores.Name, sigmap.CallChanges.Name, sigmap.CallHash.Name}
	for _, path := range []string{"../../wire/sigmap/calls.go", "../../wire/sigmap/syscalls.go",
		"../../sched/initd/calls.go", "../../sched/decision/decision.go"} {
		for _, method := range callNames(t, filepath.FromSlash(path)) {
			found := slices.Contains(elsewhere, method)
			for _, row := range roles.Permissions {
				_, is := row[method]
				found = found || is
			}
			if !found {
				t.Errorf("the method %s of %s has no row in permissions (kernel/roles): decide who may call it",
					method, path)
			}
		}
	}
	for file, methods := range map[string]iter.Seq[string]{sigmap.FileProcs: maps.Keys(procsMethods),
		sigmap.FileSelf: maps.Keys(selfMethods), sigmap.FileMachine: maps.Keys(machineMethods),
		sigmap.FileEndpoints: endpoints.Methods(), sigmap.FileInit: maps.Keys(initMethods),
		sigmap.FileEvents: maps.Keys(eventsMethods), sigmap.FileCredentials: maps.Keys(credentialsMethods)} {
		for method := range methods {
			if _, known := roles.Permissions[file][method]; !known && file != sigmap.FileMachine {
				t.Errorf("%s of /sys/%s has no row in permissions (kernel/roles)", method, file)
			}
			if file == sigmap.FileMachine && roles.Allows(sigma.RoleOwner, file, method) {
				t.Errorf("an owner may %s the machine", method)
			}
		}
	}
	for file, row := range roles.Permissions {
		for method, need := range row {
			if need < sigma.RoleViewer || need > roles.Nobody {
				t.Errorf("%s of /sys/%s is for %v", method, file, need)
			}
			for role := sigma.RoleNone; role <= sigma.RoleOwner; role++ {
				if got := roles.Allows(role, file, method); got != (role >= need) {
					t.Errorf("%v may %s %s: %v", role, method, file, got)
				}
			}
		}
		if roles.Allows(sigma.RoleOwner, file, "what is new") {
			t.Errorf("a method of %s that nobody thought of is allowed", file)
		}
	}
	if roles.Allows(sigma.RoleOwner, "new", roles.Reading) || roles.MayUse(sigma.RoleOwner, sigmap.FileMachine) ||
		roles.MayUse(sigma.RoleOwner, roles.Metrics) || roles.MayUse(sigma.RoleOwner, sigmap.FileNames) {
		t.Error("an owner sees what is the provider's")
	}
	changes := []struct{ file, method string }{{sigmap.FileProcs, sigmap.CallSpawn.Name},
		{sigmap.FileProcs, sigmap.CallKill.Name}, {sigmap.FileProcs, sigmap.CallEvict.Name},
		{sigmap.FileProcs, sigmap.CallFreeze.Name}, {sigmap.FileInit, sigmap.CallInitAdd.Name},
		{sigmap.FileCredentials, sigmap.CallCreateCredential.Name}}
	for _, c := range changes {
		if roles.Allows(sigma.RoleViewer, c.file, c.method) {
			t.Errorf("a viewer may %s %s", c.method, c.file)
		}
	}
	for _, role := range []sigma.Role{sigma.RoleViewer, sigma.RoleDeveloper, sigma.RoleOwner} {
		v, err := roles.View(role)
		if err != nil {
			t.Fatal(err)
		}
		e, _, ok := v.Lookup([]string{"any", "where"})
		if !ok || (e.Rights&sigma.RightWrite != 0) != (role >= sigma.RoleDeveloper) || e.Rights&sigma.RightRead == 0 {
			t.Errorf("a %v has %v", role, e.Rights)
		}
	}
}
