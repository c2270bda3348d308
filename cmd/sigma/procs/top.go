package procs

import (
	"cmp"
	"context"
	"fmt"
	"io"
	"runtime"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sigmaos.dev/cmd/sigma/cli"
	"sigmaos.dev/cmd/sigma/datadir"
	"sigmaos.dev/cmd/sigma/term"
	"sigmaos.dev/kernel/hostsetup"
	"sigmaos.dev/kernel/report"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

// Limits of top's interval: below, its own questions would be most of what it shows.
const (
	topIntervalDefault = time.Second
	topIntervalLeast   = 100 * time.Millisecond
	topWait            = 2 * time.Second // for machines to have looked at their procs twice
)

type topOptions struct {
	once     bool
	interval time.Duration
	sort     string
	rows     int
}

func newTopCommand(a *app) *cobra.Command {
	var o topOptions
	cmd := &cobra.Command{
		Use:     "top [--once] [--interval TIME] [--sort KEY] [-n ROWS]",
		Aliases: []string{"stats"},
		Short:   "Show which procs use processors and memory now",
		Long: `Show the procs that use most, the sums of each realm, and the machines: how much of their
processors latency-critical and best-effort procs, services and sigmad use, and what is
lent of reservations and shares to those that borrow it. All realms are shown, or the one that --realm (or SIGMA_REALM) names.

On a terminal the picture is renewed until q or ^C; c sorts by processor, m by memory.
Elsewhere, with --json, and with --once, one is printed and that is all. %CPU is of one
processor, over the interval; a proc with two busy threads has 200. Procs that live
shorter than the interval are not seen; they are counted in starts/s.`,
		Example: `  sudo sigma top
  sudo sigma top --once --sort memory -n 10
  sudo sigma top --json | jq '.realms[] | {realm, cpu_percent}'`,
		RunE: func(cmd *cobra.Command, _ []string) error {
			realm := sigma.RealmID("")
			if cli.RealmGiven(cmd) || a.Getenv("SIGMA_REALM") != "" {
				realm = sigma.RealmID(a.Realm)
			}
			return a.top(cmd.Context(), o, realm)
		},
	}
	f := cmd.Flags()
	f.BoolVar(&o.once, "once", false, "print once, also on a terminal")
	f.DurationVarP(&o.interval, "interval", "i", topIntervalDefault,
		"`TIME` between two pictures, and over which %CPU is taken")
	f.StringVar(&o.sort, "sort", "cpu", "`KEY` to sort by: cpu or memory")
	f.IntVarP(&o.rows, "rows", "n", 0, "show `ROWS` procs at most (default: what fits the terminal; all elsewhere)")
	return cmd
}

func (a *app) top(ctx context.Context, o topOptions, realm sigma.RealmID) error {
	switch {
	case o.sort != "cpu" && o.sort != "memory":
		return cli.UsageError(nil, "write --sort cpu or --sort memory", "there is no order %.40q", o.sort)
	case o.interval < topIntervalLeast:
		return cli.UsageError(nil, "", "an interval of %v is too short; %v is the least", o.interval, topIntervalLeast)
	case o.rows < 0:
		return cli.UsageError(nil, "", "a negative number of rows")
	}
	t := &topView{a: a, o: o, realm: realm, last: map[sigma.ProcID]time.Duration{}}
	first, err := t.sample(ctx)
	if err != nil {
		return err
	}
	if !o.once && !a.JSON && a.Getenv("TERM") != "dumb" {
		if s := term.OpenScreen(a.In, term.Raw(a.Out)); s != nil {
			defer s.Close()
			return t.live(ctx, s, first)
		}
	}
	var p Picture
	for until := time.Now().Add(topWait); ; {
		if err := datadir.Pause(ctx, o.interval); err != nil {
			return err
		}
		if p, err = t.sample(ctx); err != nil {
			return err
		}
		if t.compared() || time.Now().After(until) {
			break
		}
	}
	if a.JSON {
		return a.PrintJSON(t.cut(p, o.rows))
	}
	return t.print(a.Out, t.cut(p, o.rows))
}

// live renews the picture until the person has seen enough.
func (t *topView) live(ctx context.Context, s *term.Screen, p Picture) error {
	for {
		width, height := s.Size()
		var text strings.Builder
		if err := t.print(&text, t.cut(p,
			cmp.Or(t.o.rows, max(1, height-5-len(p.Realms)-2-len(p.Machines)-2)))); err != nil {
			return err
		}
		if err := s.Draw(text.String(), width, height); err != nil {
			return err
		}
		key, over := s.Key(ctx, t.o.interval)
		switch {
		case over || key == 'q':
			return nil
		case key == 'c':
			t.o.sort = "cpu"
		case key == 'm':
			t.o.sort = "memory"
		}
		next, err := t.sample(ctx)
		if ctx.Err() != nil {
			return nil
		}
		if err != nil {
			return err
		}
		p = next
	}
}

// Picture is the answer of top.
type Picture struct {
	Time     time.Time    `json:"time"`
	Machine  machineJSON  `json:"machine"`
	Machines []machineUse `json:"machines"` // of the system
	Realms   []realmUse   `json:"realms"`
	Procs    []procUse    `json:"procs"`
	Unknown  string       `json:"unknown,omitempty"` // why nothing is known of what procs use
	names    bool         // there may be more than one realm to tell apart
}

type machineJSON struct {
	Name      string  `json:"name"`
	Cores     int     `json:"cores"`
	CPU       float64 `json:"cpu_percent"` // of all cores together, 0 to 100
	Memory    uint64  `json:"memory_bytes"`
	Available uint64  `json:"memory_available_bytes"`
	Capacity  uint64  `json:"procs_memory_bytes"`      // what procs' limits may add up to
	Free      uint64  `json:"procs_memory_free_bytes"` // what is left of it
	Starts    float64 `json:"starts_per_second"`
}

type realmUse struct {
	Realm   string  `json:"realm"`
	Running int     `json:"running"`
	Waiting int     `json:"waiting"` // queued and starting
	CPU     float64 `json:"cpu_percent"`
	Memory  uint64  `json:"memory_bytes"`
	Limit   uint64  `json:"limit_bytes"` // of those that run
	Tasks   uint32  `json:"tasks"`

	// At all machines, in cores.
	LC       float64 `json:"lc_cores"`
	Reserved float64 `json:"lc_reserved_cores"`
	BE       float64 `json:"be_cores"`
	Lent     float64 `json:"lent_cores"`
	Borrowed float64 `json:"borrowed_cores"`
}

type procUse struct {
	report.Proc
	CPU  float64 `json:"cpu_percent"`
	info sigma.ProcInfo
}

// topView takes samples and remembers what it needs of the last one.
type topView struct {
	a       *app
	o       topOptions
	realm   sigma.RealmID                  // the only one to show; "" = all
	last    map[sigma.ProcID]time.Duration // processor time
	machine hostSample
	load    []report.Load // the last
	// of each machine the last before that was taken at another time: a machine looks at its procs
	// once a second at most
	loadWas []report.Load
	at      time.Time
}

// realmsToShow are those that have procs.
func (t *topView) realmsToShow(ctx context.Context, system *sdk.Client) ([]sigma.RealmID, error) {
	if t.realm != "" {
		return []sigma.RealmID{t.realm}, nil
	}
	realms, err := system.Realms().List(ctx)
	var out []sigma.RealmID
	for _, r := range realms {
		if r.Procs > 0 {
			out = append(out, r.ID)
		} else if r.ID != sigma.SystemRealm {
			t.a.Drop(r.ID) // it may be removed while we look on
		}
	}
	return out, err
}

func (t *topView) sample(ctx context.Context) (Picture, error) {
	system, err := t.a.ClientOf(ctx, sigma.SystemRealm)
	if err != nil {
		return Picture{}, err
	}
	realms, err := t.realmsToShow(ctx, system)
	if err != nil {
		return Picture{}, err
	}
	p := Picture{Time: time.Now(), Machines: []machineUse{}, Realms: []realmUse{}, Procs: []procUse{},
		names: t.realm == ""}
	seen := map[sigma.ProcID]time.Duration{}
	for _, id := range realms {
		c, err := t.a.ClientOf(ctx, id)
		if err == nil {
			err = t.sampleRealm(ctx, c, id, &p, seen)
		}
		if err != nil {
			if t.realm == "" && sigma.KindOf(err) == sigma.KindNotFound {
				continue // removed just now
			}
			return Picture{}, err
		}
	}
	if t.realm == "" || t.realm == sigma.SystemRealm {
		if err := t.sampleServices(ctx, system, &p, seen); err != nil {
			return Picture{}, err
		}
	}
	if err := t.sampleMachines(ctx, system, &p); err != nil {
		return Picture{}, err
	}
	host := sampleHost(ctx, system)
	p.Machine = host.since(t.machine, p.Time.Sub(t.at))
	p.Machine.Name = string(system.Info().Principal.Machine)
	t.last, t.at, t.machine = seen, p.Time, host
	return p, nil
}

func (t *topView) sampleRealm(ctx context.Context, c *sdk.Client, id sigma.RealmID, p *Picture,
	seen map[sigma.ProcID]time.Duration) error {
	procs, err := c.List(ctx, false)
	if err != nil {
		return err
	}
	unknown := measure(ctx, c, procs)
	if unknown != nil {
		p.Unknown = unknown.Error() // the rest of the picture is worth having
	}
	r := realmUse{Realm: string(id)}
	for _, info := range procs {
		if info.State == sigma.ProcRunning {
			t.count(&r, p, info, unknown == nil, seen)
		} else {
			r.Waiting++
		}
	}
	p.Realms = append(p.Realms, r)
	return nil
}

// sampleServices shows the provider's own programs as procs of the realm system.
func (t *topView) sampleServices(ctx context.Context, c *sdk.Client, p *Picture,
	seen map[sigma.ProcID]time.Duration) error {
	services, err := c.Services(ctx)
	if err != nil {
		return err
	}
	us, err := c.ServicesUsage(ctx)
	if err != nil {
		return err
	}
	r := realmUse{Realm: string(sigma.SystemRealm)}
	for i, s := range services {
		info := sigma.ProcInfo{ID: s.Proc, Realm: sigma.SystemRealm, Name: s.Name, Program: s.Name,
			Machine: c.Info().Principal.Machine, Profile: "system", State: sigma.ProcRunning,
			Times: sigma.Times{Spawned: s.Since, Started: s.Since}}
		if info.ID == "" {
			info.ID = sigma.ProcID(s.Name)
		}
		if i >= len(us) { // the launcher, which nobody measures
			break
		}
		info.Usage = us[i]
		t.count(&r, p, info, true, seen)
	}
	p.Realms = append(p.Realms, r)
	return nil
}

// Count adds a running proc to a picture and to its realm.
func (t *topView) count(r *realmUse, p *Picture, info sigma.ProcInfo, known bool, seen map[sigma.ProcID]time.Duration) {
	used := info.Usage.UserTime + info.Usage.SystemTime
	if !known {
		used = t.last[info.ID]
	}
	seen[info.ID] = used
	// Of one that was not there before the whole life is the interval.
	span := p.Time.Sub(info.Times.Started)
	if before, there := t.last[info.ID]; there {
		used -= before
		span = p.Time.Sub(t.at)
	}
	one := procUse{Proc: report.OfProc(info), info: info, CPU: percent(used, span)}
	p.Procs = append(p.Procs, one)
	r.Running++
	r.CPU += one.CPU
	r.Memory += uint64(info.Usage.Memory)
	r.Limit += uint64(info.Memory)
	r.Tasks += info.Usage.Tasks
}

// percent is 0 where there is nothing to divide by.
func percent(part, whole time.Duration) float64 {
	if part <= 0 || whole <= 0 {
		return 0
	}
	return float64(int(1000*float64(part)/float64(whole))) / 10
}

// cut sorts a picture's procs and keeps the first n; all if n is 0.
func (t *topView) cut(p Picture, n int) Picture {
	p.Procs = slices.Clone(p.Procs)
	slices.SortStableFunc(p.Procs, func(a, b procUse) int {
		byCPU, byMemory := cmp.Compare(b.CPU, a.CPU), cmp.Compare(b.Usage.Memory, a.Usage.Memory)
		if t.o.sort == "memory" {
			return cmp.Or(byMemory, byCPU)
		}
		return cmp.Or(byCPU, byMemory)
	})
	if n > 0 && len(p.Procs) > n {
		p.Procs = p.Procs[:n:n]
	}
	return p
}

func (t *topView) print(out io.Writer, p Picture) error {
	m, size := p.Machine, func(n uint64) string { return sigma.Bytes(n).String() }
	fmt.Fprintf(out,
		"machine %s: cpu %.1f%% of %d cores; memory %s, %s available; procs may have %s, %s free; %.0f starts/s\n\n",
		term.Printable(m.Name), m.CPU, m.Cores, size(m.Memory), size(m.Available),
		size(m.Capacity), size(m.Free), m.Starts)
	if p.Unknown != "" {
		fmt.Fprintf(out, "what procs use now is not known: %s\n\n", term.Printable(p.Unknown))
	}
	if len(p.Machines) > 0 {
		if err := printMachines(out, p.Machines); err != nil {
			return err
		}
		fmt.Fprintln(out)
	}
	realms := term.NewTable(out)
	realms.Row("REALM", "RUNNING", "WAITING", "%CPU", "MEMORY", "LIMITS", "TASKS", "LENT", "BORROWED")
	for _, r := range p.Realms {
		realms.Row(r.Realm, r.Running, r.Waiting, fmt.Sprintf("%.1f", r.CPU), size(r.Memory),
			limitWords(sigma.Bytes(r.Limit)), r.Tasks, coresWords(r.Lent), coresWords(r.Borrowed))
	}
	if err := realms.Print(); err != nil {
		return err
	}
	fmt.Fprintln(out)
	procs := term.NewTable(out)
	head := []any{"PROC", "NAME", "STATE", "%CPU", "CPU", "MEMORY", "PEAK", "LIMIT", "TASKS", "AGE"}
	if p.names {
		head = slices.Insert(head, 1, any("REALM"))
	}
	procs.Row(head...)
	for _, x := range p.Procs {
		cells := []any{x.ID, cli.Clip(x.Name, 24), stateWords(x.info), fmt.Sprintf("%.1f", x.CPU), cpuWords(x.info),
			memoryWords(x.info), x.info.Usage.MemoryPeak, limitWords(x.info.Memory), tasksWords(x.info),
			term.Ago(x.info.Times.Spawned)}
		if p.names {
			cells = slices.Insert(cells, 1, any(cli.Clip(x.Realm, 16)))
		}
		procs.Row(cells...)
	}
	return procs.Print()
}

// printMachines prints what the machines' processors and memory are used for.
func printMachines(out io.Writer, machines []machineUse) error {
	size := func(n uint64) string { return sigma.Bytes(n).String() }
	t := term.NewTable(out)
	t.Row("MACHINE", "CORES", "LC", "RESERVED", "BE", "SYSTEM", "SIGMAD", "LENT", "BORROWED", "MEMORY", "USED", "HELD",
		"FREE")
	for _, m := range machines {
		if m.Missing != "" {
			t.Row(m.Machine, "does not answer: "+m.Missing)
			continue
		}
		t.Row(m.Machine, fmt.Sprint(m.Cores), coresWords(m.LC), coresWords(m.Reserved), coresWords(m.BE),
			coresWords(m.System), coresWords(m.Sigmad), coresWords(m.Lent), coresWords(m.Borrowed), size(m.Memory),
			size(m.Used),
			size(m.Held), size(m.Free))
	}
	return t.Print()
}

func coresWords(n float64) string { return fmt.Sprintf("%.2f", n) }

// hostSample is what the machine tells about itself. The admin socket is a UNIX socket, so it is
// this one.
type hostSample struct {
	busy, all        float64 // of all cores, in ticks
	memory           uint64
	available        uint64
	capacity, free   uint64
	starts           float64
	known, hasStarts bool
}

func sampleHost(ctx context.Context, c *sdk.Client) (h hostSample) {
	read := hostsetup.Read
	first, _, _ := strings.Cut(read("/proc/stat"), "\n")
	var user, nice, system, idle, iowait, irq, soft, steal float64
	if n, _ := fmt.Sscanf(first, "cpu %f %f %f %f %f %f %f %f", &user, &nice, &system, &idle, &iowait, &irq, &soft,
		&steal); n >= 4 {
		h.known, h.busy = true, user+nice+system+irq+soft+steal
		h.all = h.busy + idle + iowait
	}
	memory := read("/proc/meminfo")
	h.memory = uint64(hostsetup.Meminfo(memory, "MemTotal"))
	h.available = uint64(hostsetup.Meminfo(memory, "MemAvailable"))
	text, _, err := c.Get(ctx, "/sys/metrics")
	if err != nil {
		return h
	}
	for line := range strings.Lines(string(text)) {
		name, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		var v float64
		if _, err := fmt.Sscan(value, &v); err != nil {
			continue
		}
		switch name {
		case "sigma_schedd_procs_started_total":
			h.starts, h.hasStarts = v, true
		case "sigma_schedd_memory_free_bytes":
			h.free = uint64(v)
		case "sigma_schedd_memory_capacity_bytes":
			h.capacity = uint64(v)
		}
	}
	return h
}

// since makes what top shows of two samples that are so far apart; rates are 0 without an earlier
// one.
func (h hostSample) since(before hostSample, apart time.Duration) machineJSON {
	m := machineJSON{Cores: runtime.NumCPU(), Memory: h.memory, Available: h.available, Capacity: h.capacity,
		Free: h.free}
	if before.known && h.all > before.all {
		m.CPU = float64(int(1000*(h.busy-before.busy)/(h.all-before.all))) / 10
	}
	if before.hasStarts && apart > 0 {
		m.Starts = float64(int(10*(h.starts-before.starts)/apart.Seconds())) / 10
	}
	return m
}
