package db

import (
	"encoding/base64"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"path/filepath"
	"strings"
	"testing"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/db/query"
)

const (
	hidden = "bytes of another realm"
	routes = 1000
)

// asking asks for what another realm's databases hold in ways drawn by lot.
type asking struct {
	*testing.T
	tree   *Tree
	dir    string // of the server
	root   sigma.File
	random *rand.Rand
	found  int
	tried  map[string]int
}

func pick[T any](r *rand.Rand, of ...T) T { return of[r.IntN(len(of))] }

// file is how a statement may call a file of another realm.
func (a *asking) file() string {
	rel := pick(a.random, "data.sqlite", "data.sqlite-wal", "data.sqlite-shm", "definition", "")
	path := pick(a.random, "../../other/shop/"+rel, "../shop/"+rel, filepath.Join(a.dir, "other", "shop", rel),
		filepath.Join(a.dir, "other/shop/../shop", rel), "/proc/self/cwd/"+rel,
		"/proc/self/fd/"+fmt.Sprint(a.random.IntN(40)), "//"+filepath.Join(a.dir, "other/shop", rel), ":memory:", "")
	if a.random.IntN(2) == 0 {
		path = "file:" + path + pick(a.random, "", "?mode=ro", "?mode=rwc&cache=shared", "?vfs=unix-none",
			"?immutable=1", "?vfs=memdb")
	}
	return path
}

// statement is SQL that would reach another file if something let it.
func (a *asking) statement() string {
	f := strings.ReplaceAll(a.file(), "'", "''")
	name := pick(a.random, "x", "main", "temp", "other", "shop", "aux", "secret")
	return fmt.Sprintf(pick(a.random,
		"attach '%[1]s' as %[2]s", "ATTACH DATABASE '%[1]s' AS \"%[2]s\"", "attach '%[1]s' as %[2]s key ''",
		"vacuum into '%[1]s'", "vacuum main into '%[1]s'", "select * from secret", "select * from %[2]s.secret",
		"select * from other.shop.secret",
		"pragma temp_store_directory='%[1]s'", "pragma data_store_directory='%[1]s'", "pragma database_list",
		"pragma journal_mode=%[2]s", "pragma writable_schema=on", "pragma module_list", "select readfile('%[1]s')",
		"select writefile('%[1]s','x')",
		"select load_extension('%[1]s')", "select fts3_tokenizer('%[2]s', x'00')", "select * from fsdir('%[1]s')",
		"select * from pragma_database_list", "select * from sqlite_dbpage", "select * from dbstat",
		"select * from sqlite_schema",
		"create virtual table %[2]s using csv(filename='%[1]s')", "create virtual table %[2]s using zipfile('%[1]s')",
		"create virtual table v%[2]s using fts5(a, content='%[2]s.secret')",
		"create virtual table v%[2]s using unionvtab('select ''%[1]s''')",
		"create temp table t%[2]s as select * from %[2]s.secret", "create temp view w%[2]s as select * from secret",
		"detach %[2]s", "explain select * from %[2]s.secret", "with s as (select * from %[2]s.secret) select * from s",
		"select sqlite_source_id(), sqlite_compileoption_get(%[3]d)",
		"select * from generate_series(1,%[3]d)", "select edit('%[1]s')", "begin; attach '%[1]s' as %[2]s",
		"select * from sqlite_stmt", "select * from bytecode('select * from secret')", "select zeroblob(%[3]d)",
		"select randomblob(%[3]d)"),
		f, name, a.random.IntN(5000))
}

func (a *asking) look(route string, values ...any) {
	a.tried[route]++
	for _, v := range values {
		text := fmt.Sprintf("%s", v)
		if raw, err := base64.StdEncoding.DecodeString(text); err == nil {
			text += string(raw)
		}
		if strings.Contains(text, hidden) {
			a.found++
		}
	}
}

// name is a name of a database, or what might be taken for one.
func (a *asking) name() string {
	return pick(a.random, "shop", "shop", "mine", "..", ".", "../other", "../other/shop", "other", "/",
		"shop/../../other/shop", "", "SHOP", "shop\x00", ".new-shop", ".old-shop", a.file())
}

func (a *asking) once() {
	ctx := a.Context()
	switch a.random.IntN(10) {
	case 0: // another realm's tree by name
		f, err := a.tree.Attach(ctx, tenant(pick[sigma.RealmID](a.random, "third", a.tree.cfg.Realm)),
			pick(a.random, "third", "../other", "other/shop", "asks/../other", "third\x00"))
		if err == nil {
			a.Errorf("another realm's tree was given: %v", f)
		}
	case 1:
		f, _, err := a.root.Walk(ctx, []string{a.name(), a.name(), pick(a.random, query.InfoFile, query.SessionFile,
			dataFile, definitionFile)}[a.random.IntN(2):])
		if err == nil && f != nil {
			b := make([]byte, 4096)
			if f.Open(ctx, sigma.OpenRead) == nil {
				n, _ := f.ReadAt(ctx, b, 0)
				a.look("walk", string(b[:n]))
			}
			f.Close()
		}
	case 2:
		a.root.Mkdir(ctx, a.name(), 0o777)
	case 3:
		if name := a.name(); name != "shop" && name != "mine" {
			if err := a.root.Remove(ctx, name); err == nil && goodName.FindString(name) == "" {
				a.Errorf("%q was removed", name)
			}
		}
	case 4:
		payload, _ := json.Marshal(query.CreateRequest{Name: a.name(), URL: pick(a.random, "", "sqlite://"+a.file(),
			"file:"+a.file(), "postgres://u@h/../"+a.name(), "mysql://x")})
		_, _, err := a.root.(sigma.Caller).Call(ctx, query.CallCreate, payload, nil)
		if err == nil {
			a.Error("a tenant made a database by URL")
		}
	default:
		f, _, err := a.root.Walk(ctx, []string{pick(a.random, "shop", "mine"), query.SessionFile})
		if err != nil || f == nil || f.Open(ctx, sigma.OpenReadWrite) != nil {
			return
		}
		defer f.Close()
		s := &talk{a.T, f}
		for range 1 + a.random.IntN(4) {
			text := a.statement()
			var request []byte
			switch a.random.IntN(3) {
			case 0:
				request = []byte(text)
			case 1:
				request, _ = json.Marshal(map[string]any{"sql": text, "want": pick(a.random, "", "rows", "count")})
			default: // the file as an argument
				request, _ = json.Marshal(map[string]any{"sql": pick(a.random, "attach ? as x", "vacuum into ?",
					"select readfile(?)", "select ?", "select * from secret where text like '%'||?"),
					"args": []string{pick(a.random, a.file(), "")}})
			}
			rows, _, err := s.try(ctx, string(request))
			a.look("sql", err)
			for _, row := range rows {
				a.look("row", row...)
			}
		}
	}
}

// Goal: nothing of another realm's databases is ever seen, whatever is asked: 1,000 ways by names,
// files in every spelling, modules, functions and PRAGMAs, of a realm that has databases of the
// same names. The control asks the same as the realm whose they are, and finds it; and at the end
// they hold what they held.
func TestAnotherRealmsDatabases(t *testing.T) {
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	for as, finds := range map[sigma.RealmID]bool{"asks": false, "other": true} {
		t.Run(string(as), func(t *testing.T) {
			dir, trees := t.TempDir(), map[sigma.RealmID]*Tree{}
			for _, realm := range []sigma.RealmID{"other", "asks"} {
				trees[realm] = newTreeOf(t, dir, realm, Limits{})
				root := rootOf(t, trees[realm])
				for _, name := range []string{"shop", "mine"} {
					if err := root.Mkdir(t.Context(), name, 0o777); err != nil {
						t.Fatal(err)
					}
				}
				if realm == "other" {
					s := sessionWith(t, root, "shop")
					s.do("create table secret (text)")
					s.do("insert into secret values ('" + hidden + "')")
				}
			}
			a := &asking{T: t, tree: trees[as], dir: dir, root: rootOf(t, trees[as]),
				random: rand.New(rand.NewPCG(seed, 1)), tried: map[string]int{}}
			for range routes {
				a.once()
			}
			if (a.found > 0) != finds {
				t.Errorf("realm %s found what realm other has %d times", as, a.found)
			}
			t.Logf("found %d times, looked at %v", a.found, a.tried)
			rows, _ := sessionWith(t, rootOf(t, trees["other"]), "shop").do("select text from secret")
			if len(rows) != 1 || rows[0][0] != hidden {
				t.Errorf("it holds %v now", rows)
			}
		})
	}
}
