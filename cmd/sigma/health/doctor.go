package health

import (
	"context"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"slices"
	"strconv"
	"strings"

	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"

	"sigmaos.dev/cmd/sigma/cli"
	"sigmaos.dev/cmd/sigma/datadir"
	"sigmaos.dev/cmd/sigma/mounts"
	"sigmaos.dev/cmd/sigma/term"
	"sigmaos.dev/kernel/hostsetup"
	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/diskspace"
)

// What the launcher needs (launcher/src): it starts nothing on a machine that lacks one of these.
const (
	landlockLeast = 2             // ABI; Linux 5.19, and the oldest kernel we support is 6.1
	memoryLeast   = 1 * sigma.GiB // available, for the system itself and a few procs
	kernelLeast   = "6.1"         // Debian 12's
)

// finding is one line of doctor's answer.
type finding struct {
	Check  string `json:"check"`
	State  string `json:"state"` // one of the constants below
	Found  string `json:"found"`
	Advice string `json:"advice,omitempty"`
}

const (
	findingOK      = "ok"
	findingMissing = "missing" // sigmaOS does not run without it
	findingWeak    = "weak"    // sigmaOS runs, with less protection or fewer abilities
	findingDown    = "down"    // a part of the system that runs does not answer
)

func newDoctorCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "doctor",
		Short: "Check what this machine offers sigmaOS",
		Long: `Check what sigmaOS needs of this machine, and what of its kernel it uses where it is
there; if a system runs, also whether each of its processes has its walls, how it stands
with its other machines and what expires when. Each line is

  ok        as it should be
  weak      sigmaOS runs, with less protection or fewer abilities
  down      a part of the system that runs does not answer: what needs it fails
  missing   sigmaOS does not run without it

and those that are not ok say how to get more. It needs no running system and changes
nothing. A part that has not answered after 1.2 s is down, and so is a machine that is
lost. Exit code 1 if something is missing or down.`,
		Example: `  sigma doctor
  sigma doctor --json | jq '.[] | select(.state != "ok")'`,
		RunE: func(cmd *cobra.Command, _ []string) error { return a.doctor(cmd.Context()) },
	}
}

func (a *app) doctor(ctx context.Context) error {
	m := thisMachine()
	asked := make(chan parts, 1) // while this machine is looked at
	go func() {
		var p parts
		if a.runs() {
			p = a.askParts(ctx)
		}
		asked <- p
	}()
	findings := []finding{m.platform(), m.kernel(), m.root(), rootlessFinding(), m.landlock(), m.seccomp(), m.cgroups(),
		m.namespaces(), m.memory(), a.disk(), programsFinding(), a.active(m)}
	findings = append(findings, mountFindings()...)
	findings = append(findings, a.uplinkFindings()...)
	findings = append(findings, a.realmSocketFindings()...)
	features := m.features() // tries some out, for which a busy host takes long
	findings = append(findings, (<-asked).found...)
	findings = append(findings, features...)
	code := exitOf(findings)
	if a.JSON {
		if err := a.PrintJSON(findings); err != nil {
			return err
		}
		return cli.ExitCodeOrNil(code)
	}
	if err := a.printFindings(findings); err != nil {
		return err
	}
	return cli.ExitCodeOrNil(code)
}

func (a *app) printFindings(findings []finding) error {
	t := term.NewTable(a.Out)
	for _, f := range findings {
		found := f.Found
		if f.Advice != "" {
			found += "; " + f.Advice
		}
		t.Row(f.State, f.Check, found)
	}
	return t.Print()
}

func exitOf(findings []finding) int {
	if slices.ContainsFunc(findings, func(f finding) bool {
		return f.State == findingMissing || f.State == findingDown
	}) {
		return cli.ExitFailure
	}
	return cli.ExitOK
}

// unknown is for a part of the system that runs and did not say how it is.
func unknown(ctx context.Context, check string, err error) finding {
	f := weak(check, "not known: "+err.Error(), cli.OrElse(sigma.HintOf(err), "look at the log"))
	switch sigma.KindOf(err) {
	case sigma.KindTimeout, sigma.KindUnavailable, sigma.KindLost:
		f.State = findingDown
	}
	if ctx.Err() != nil {
		f.State, f.Found = findingDown, "no answer within "+partsMax.String()
	}
	return f
}

// machine reads what the kernel tells about itself.
type machine struct {
	files func(string) ([]byte, error)
	dirs  fs.FS // the root directory, for names only
}

func (m machine) read(path string) string {
	b, _ := m.files(path)
	return string(b)
}

func (m machine) platform() finding {
	f := finding{Check: "platform", State: findingOK, Found: runtime.GOOS + "/" + runtime.GOARCH}
	if f.Found != "linux/amd64" {
		f.State, f.Advice = findingMissing, "sigmaOS runs on linux/amd64"
	}
	return f
}

func (m machine) kernel() finding {
	release := m.release()
	f := finding{Check: "kernel", State: findingOK, Found: cli.OrElse(release, "unknown")}
	if !versionAtLeast(release, kernelLeast) {
		f.State, f.Advice = findingMissing, "use Linux "+kernelLeast+" or newer, as Debian 12 has"
	}
	return f
}

// versionAtLeast compares the first two numbers of kernel releases.
func versionAtLeast(release, least string) bool {
	var has, needs [2]int
	fmt.Sscanf(release, "%d.%d", &has[0], &has[1])
	fmt.Sscanf(least, "%d.%d", &needs[0], &needs[1])
	return slices.Compare(has[:], needs[:]) >= 0
}

func (m machine) root() finding {
	if os.Geteuid() == 0 {
		return finding{Check: "root", State: findingOK, Found: "this is root"}
	}
	return finding{Check: "root", State: findingWeak, Found: "this is user " + strconv.Itoa(os.Geteuid()),
		Advice: "sigma up and most other verbs need root: use sudo, or sigma up --rootless, which protects less"}
}

func (m machine) landlock() finding {
	abi, _, no := unix.Syscall(unix.SYS_LANDLOCK_CREATE_RULESET, 0, 0, unix.LANDLOCK_CREATE_RULESET_VERSION)
	f := finding{Check: "landlock", State: findingOK}
	f.Found, f.Advice = landlockWords(int(abi))
	if f.Advice != "" {
		f.State = findingWeak
	}
	switch {
	case no == unix.ENOSYS:
		f.State, f.Found, f.Advice = findingMissing, "not in this kernel",
			"use a kernel with CONFIG_SECURITY_LANDLOCK=y; Debian's has it"
	case no == unix.EOPNOTSUPP:
		f.State, f.Found, f.Advice = findingMissing, "switched off",
			"boot with landlock in the kernel's lsm= parameter, for example: "+
				"lsm=landlock,lockdown,yama,integrity,apparmor"
	case no != 0:
		f.State, f.Found, f.Advice = findingMissing, no.Error(),
			"a sandbox around this program may forbid it; run it outside"
	case abi < landlockLeast:
		f.State, f.Advice = findingMissing, fmt.Sprintf("ABI %d or newer is needed: use Linux %s or newer",
			landlockLeast, kernelLeast)
	}
	return f
}

func (m machine) seccomp() finding {
	actions := strings.Fields(m.read("/proc/sys/kernel/seccomp/actions_avail"))
	f := finding{Check: "seccomp", State: findingOK, Found: "filters with " + strings.Join(actions, " ")}
	if len(actions) == 0 {
		f.State, f.Found, f.Advice = findingMissing, "no filters",
			"use a kernel with CONFIG_SECCOMP_FILTER=y; Debian's has it"
	}
	for _, need := range []string{"kill_process", "errno", "allow"} {
		if len(actions) > 0 && !slices.Contains(actions, need) {
			f.State, f.Advice = findingMissing, "the action "+need+" is missing: use Linux "+kernelLeast+" or newer"
		}
	}
	return f
}

// cgroups chooses as the launcher does: version 2 if one hierarchy has all controllers, else
// version 1.
func (m machine) cgroups() finding {
	v1 := map[string]bool{}
	advice := ""
	for line := range strings.Lines(m.read("/proc/self/mountinfo")) {
		left, right, _ := strings.Cut(line, " - ")
		l, r := strings.Fields(left), strings.Fields(right)
		if len(l) < 5 || len(r) < 3 {
			continue
		}
		switch r[0] {
		case "cgroup2":
			has := strings.Fields(m.read(filepath.Join(l[4], "cgroup.controllers")))
			if missing := hostsetup.MissingControllers(has); len(missing) == 0 {
				return finding{Check: "cgroups", State: findingOK,
					Found: "version 2 at " + l[4] + ", with " + strings.Join(hostsetup.Controllers(), " ")}
			} else if advice == "" {
				advice = "version 2 at " + l[4] + " lacks " + strings.Join(missing, ", ")
			}
		case "cgroup":
			for _, c := range strings.Split(r[2], ",") {
				v1[c] = true
			}
		}
	}
	var has []string
	for c := range v1 {
		has = append(has, c)
	}
	missing := hostsetup.MissingControllers(has)
	if len(missing) == 0 {
		return weak("cgroups", "version 1, with "+strings.Join(hostsetup.Controllers(), " "),
			"what procs used is put together from several hierarchies, and starts cost some more: boot with "+
				"systemd.unified_cgroup_hierarchy=1, or mount version 2 with all controllers")
	}
	if advice == "" {
		advice = "no controller " + strings.Join(missing, ", ") + " is mounted"
	}
	return finding{Check: "cgroups", State: findingMissing, Found: advice,
		Advice: "mount all controllers in one place: mount -t cgroup2 none /sys/fs/cgroup; if memory is missing, " +
			"boot with cgroup_enable=memory; in a container, give it its own writable cgroup"}
}

func (m machine) namespaces() finding {
	needed := []string{"pid", "mnt", "net", "ipc", "uts"}
	var missing []string
	for _, n := range needed {
		if _, err := os.Lstat("/proc/self/ns/" + n); err != nil {
			missing = append(missing, n)
		}
	}
	if len(missing) > 0 {
		return finding{Check: "namespaces", State: findingMissing, Found: "no " + strings.Join(missing, " "),
			Advice: "use a kernel with CONFIG_NAMESPACES and all kinds of them; Debian's has them"}
	}
	return finding{Check: "namespaces", State: findingOK, Found: strings.Join(needed, " ")}
}

func (m machine) memory() finding {
	text := m.read("/proc/meminfo")
	total, available := hostsetup.Meminfo(text, "MemTotal"), hostsetup.Meminfo(text, "MemAvailable")
	f := finding{Check: "memory", State: findingOK, Found: fmt.Sprintf("%v, %v available", total, available)}
	if available < memoryLeast {
		f.State, f.Advice = findingWeak, fmt.Sprintf("less than %v is available: few procs will be admitted",
			memoryLeast)
	}
	return f
}

// disk looks at where DATA is or would be.
func (a *app) disk() finding {
	dir, err := a.DataDir()
	if err != nil {
		return finding{Check: "disk", State: findingMissing, Found: err.Error(), Advice: sigma.HintOf(err)}
	}
	at := dir
	space, err := diskspace.Of(at)
	for err != nil && at != "/" {
		at = filepath.Dir(at)
		space, err = diskspace.Of(at)
	}
	f := finding{Check: "disk", State: findingOK, Found: fmt.Sprintf("%v free for %s", space.Free, dir)}
	if _, up, err := datadir.Running(dir); err == nil && up {
		if diskspace.Low(space) {
			f.State, f.Advice = findingWeak,
				fmt.Sprintf(
					"that is less than the %v that are kept for what makes room: no names are written; free some of it",
					diskspace.Reserve(space))
		}
		return f
	}
	if space.Free < datadir.SpaceLeast {
		f.State, f.Advice = findingMissing,
			fmt.Sprintf("%v are needed: free some space or choose another place with --data DIR",
				sigma.Bytes(datadir.SpaceLeast))
	}
	return f
}

// mountFindings tells of mounts of realms, and of what an ordinary user needs for one.
func mountFindings() (all []finding) {
	live := 0
	for _, m := range mounts.Mounts() {
		dir := m.Dir
		if !mounts.DeadMount(dir) {
			live++
			continue
		}
		all = append(all, finding{Check: "mount", State: findingWeak, Found: "the server of " + dir + " is gone",
			Advice: "sigma unmount " + dir})
	}
	if len(all) > 0 {
		return all
	}
	if _, err := exec.LookPath("fusermount3"); err != nil && os.Geteuid() != 0 {
		return []finding{{Check: "mount", State: findingWeak, Found: "no fusermount3",
			Advice: "only root can mount realms: apt-get install fuse3"}}
	}
	return []finding{{Check: "mount", State: findingOK, Found: fmt.Sprintf("realms are mounted on %d directories",
		live)}}
}

func programsFinding() finding {
	found, err := cli.FindPrograms()
	if err != nil {
		return finding{Check: "programs", State: findingMissing, Found: err.Error(), Advice: sigma.HintOf(err)}
	}
	return finding{Check: "programs", State: findingOK, Found: "all in " + filepath.Dir(found["launcher"])}
}
