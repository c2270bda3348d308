package hostsetup

import (
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"sigmaos.dev/sigma"
)

// Read is the content of a file of this host, "" if it cannot be read.
func Read(path string) string {
	b, _ := os.ReadFile(path)
	return string(b)
}

// Meminfo is an amount in the text of /proc/meminfo, 0 if there is none of that name.
func Meminfo(text, name string) sigma.Bytes {
	for line := range strings.Lines(text) {
		if rest, ok := strings.CutPrefix(line, name+":"); ok {
			n, _ := strconv.ParseUint(strings.Fields(rest + " 0")[0], 10, 54)
			return sigma.Bytes(n) * sigma.KiB
		}
	}
	return 0
}

// Hierarchies says which cgroup hierarchies are mounted where: of v1 by controller, of v2 with all
// controllers by "". read gives the content of a file of the host.
func Hierarchies(read func(path string) string) map[string]string {
	out := map[string]string{}
	for line := range strings.Lines(read("/proc/self/mountinfo")) {
		left, right, _ := strings.Cut(line, " - ")
		l, r := strings.Fields(left), strings.Fields(right)
		if len(l) < 5 || len(r) < 3 {
			continue
		}
		switch r[0] {
		case "cgroup2":
			if len(MissingControllers(strings.Fields(read(filepath.Join(l[4],
				"cgroup.controllers"))))) == 0 {
				out[""] = l[4]
			}
		case "cgroup":
			for _, c := range strings.Split(r[2], ",") {
				out[c] = l[4]
			}
		}
	}
	return out
}
