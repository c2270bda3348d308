package text

import (
	"encoding/json"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"
	"testing"

	"sigmaos.dev/apps/cache/store"
)

// library names a test binary of the client library go-redis; make test-library builds it.
const library = "SIGMA_TEST_GOREDIS"

// differs are specs of commands that are supported and answered in another way, and why.
var differs = map[string]string{
	"should hello":                               "there is version 2 of the protocol only",
	"should Select":                              "there is one database",
	"should ClientSetInfo":                       "what a library tells of itself is not kept",
	"should ConfigSet":                           "a client cannot configure a member",
	"should ConfigRewrite":                       "a client cannot configure a member",
	"should InfoMap":                             "a cache has other sections to tell of",
	"should Info cpu":                            "a cache has other sections to tell of",
	"should Info cpu and memory":                 "a cache has other sections to tell of",
	"should Command":                             "COMMAND tells nothing of commands",
	"should Command Tips":                        "COMMAND tells nothing of commands",
	"Should CommandGetKeys":                      "COMMAND tells nothing of commands",
	"should CommandGetKeysAndFlags":              "COMMAND tells nothing of commands",
	"should return all command names":            "COMMAND tells nothing of commands",
	"should filter commands by ACL category":     "COMMAND tells nothing of commands",
	"should filter commands by pattern":          "COMMAND tells nothing of commands",
	"should ClientKillByFilter with kill myself": "connections cannot be ended by a client",
	"should SetFromBuffer and GetToBuffer with 10 MiB payload": "a value has up to 8 MiB",
}

// unsupported is what a command is answered that a cache does not have.
var unsupported = regexp.MustCompile(`(?i)unknown (sub)?command`)

// suiteLeast is how many specs pass: of keys, strings, scans and the server.
const suiteLeast = 76

// Goal: the tests of a client library of Redis pass, as far as they use commands that a cache has.
// Method: its specs of strings, keys, scans and the server run against a server; a spec that fails
// was answered that a command is unknown, or is one of differs.
func TestLibrarySuite(t *testing.T) {
	suite := os.Getenv(library)
	if suite == "" {
		t.Skipf("%s names no test binary of go-redis: make test-library", library)
	}
	st, err := store.New(store.Config{Limit: 256 << 20})
	if err != nil {
		t.Fatal(err)
	}
	defer st.Close()
	s, err := New(Config{Backend: alone{st}})
	if err != nil {
		t.Fatal(err)
	}
	l, err := net.Listen("tcp", "127.0.0.1:0")
	if err != nil {
		t.Fatal(err)
	}
	go s.Serve(t.Context(), l) // ends with the listener
	defer s.Shutdown(t.Context())
	defer l.Close()
	dir := t.TempDir()
	where, report := filepath.Join(dir, "endpoints.json"), filepath.Join(dir, "report.json")
	text := fmt.Sprintf(`{"cache":{"raw_endpoints":[{"dns_name":"127.0.0.1","port":%d}]}}`,
		l.Addr().(*net.TCPAddr).Port)
	if err := os.WriteFile(where, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	cmd := exec.CommandContext(t.Context(), suite, "-test.run", "TestGinkgoSuite", "-ginkgo.no-color",
		"-ginkgo.focus", "Commands (strings|keys|scanning|server|debugging|(json )?marshaling)",
		"-ginkgo.skip", "should (Save|SlaveOf|ReplicaOf|Wait)", "-ginkgo.json-report", report)
	cmd.Dir = dir
	// The suite takes a server that it is told of for one of Redis Enterprise, and starts none.
	cmd.Env = append(os.Environ(), "RE_CLUSTER=true", "REDIS_VERSION=7.2", "REDIS_ENDPOINTS_CONFIG_PATH="+where)
	out, _ := cmd.CombinedOutput() // it fails, since specs of other commands do
	b, err := os.ReadFile(report)
	if err != nil {
		t.Fatalf("%v\n%s", err, out[max(0, len(out)-2000):])
	}
	var reports []struct {
		SpecReports []struct {
			ContainerHierarchyTexts           []string
			LeafNodeText, LeafNodeType, State string
			Failure                           struct{ Message string }
		}
	}
	if err := json.Unmarshal(b, &reports); err != nil || len(reports) != 1 {
		t.Fatalf("%d reports, %v", len(reports), err)
	}
	passed, refused := 0, 0
	for _, r := range reports[0].SpecReports {
		switch name := r.LeafNodeText; {
		case r.LeafNodeType != "It" || r.State == "skipped":
		case r.State == "passed":
			passed++
			if why := differs[name]; why != "" {
				t.Errorf("%s passes, though %s", name, why)
			}
		case unsupported.MatchString(r.Failure.Message):
			refused++
		case differs[name] == "":
			t.Errorf("%s %s: %s: %.500s", strings.Join(r.ContainerHierarchyTexts, " "), name, r.State,
				r.Failure.Message)
		}
	}
	t.Logf("%d specs pass, %d use commands that a cache does not have", passed, refused)
	if passed < suiteLeast {
		t.Errorf("%d specs pass, %d are known to", passed, suiteLeast)
	}
}
