package main

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"time"

	"github.com/spf13/cobra"

	"sigmaos.dev/sigma"
)

// procJSON is a proc as ps and inspect print it. Times that were not reached are left out; durations are in seconds.
type procJSON struct {
	ID      string          `json:"id"`
	Realm   string          `json:"realm"`
	Name    string          `json:"name"`
	Program string          `json:"program"`
	Args    []string        `json:"args"`
	Parent  string          `json:"parent,omitempty"`
	Machine string          `json:"machine,omitempty"`
	Class   string          `json:"class"`
	Memory  uint64          `json:"memory_bytes"`
	State   string          `json:"state"`
	Status  *procStatusJSON `json:"status,omitempty"` // when it has ended
	Times   procTimesJSON   `json:"times"`
	Usage   procUsageJSON   `json:"usage"`
}

type procStatusJSON struct {
	Code     string `json:"code"`
	ExitCode int    `json:"exit_code"`
	Kind     string `json:"kind,omitempty"`
	Message  string `json:"message,omitempty"`
	Data     []byte `json:"data,omitempty"`
}

type procTimesJSON struct {
	Spawned   *time.Time `json:"spawned,omitempty"`
	Placed    *time.Time `json:"placed,omitempty"`
	Contained *time.Time `json:"contained,omitempty"`
	Executed  *time.Time `json:"executed,omitempty"`
	Started   *time.Time `json:"started,omitempty"`
	Ended     *time.Time `json:"ended,omitempty"`
}

type procUsageJSON struct {
	UserSeconds   float64 `json:"user_seconds"`
	SystemSeconds float64 `json:"system_seconds"`
	MemoryPeak    uint64  `json:"memory_peak_bytes"`
}

func statusToJSON(s sigma.Status) *procStatusJSON {
	if s.Code == sigma.StatusNone {
		return nil
	}
	j := &procStatusJSON{Code: s.Code.String(), ExitCode: s.ExitCode, Message: s.Msg, Data: s.Data}
	if s.Kind != sigma.KindOther {
		j.Kind = s.Kind.String()
	}
	return j
}

func procToJSON(p sigma.ProcInfo) procJSON {
	at := func(t time.Time) *time.Time {
		if t.IsZero() || t.Unix() <= 0 {
			return nil
		}
		return &t
	}
	return procJSON{
		ID: string(p.ID), Realm: string(p.Realm), Name: p.Name, Program: p.Program, Args: slices.Concat([]string{}, p.Args), Parent: string(p.Parent),
		Machine: string(p.Machine), Class: p.Class.String(), Memory: uint64(p.Memory), State: p.State.String(), Status: statusToJSON(p.Status),
		Times: procTimesJSON{at(p.Times.Spawned), at(p.Times.Placed), at(p.Times.Contained), at(p.Times.Executed), at(p.Times.Started), at(p.Times.Ended)},
		Usage: procUsageJSON{p.Usage.UserTime.Seconds(), p.Usage.SystemTime.Seconds(), uint64(p.Usage.MemoryPeak)},
	}
}

func newPsCommand(a *app) *cobra.Command {
	var all, quiet bool
	cmd := &cobra.Command{
		Use:   "ps [-a] [-q]",
		Short: "List the realm's procs",
		Long: `List the realm's procs that have not ended, oldest first; with -a also those that have
ended and are still remembered.`,
		Example: `  sudo sigma ps -a
  sudo sigma kill $(sudo sigma ps -q)`,
		Args: between(0, 0),
		RunE: func(cmd *cobra.Command, _ []string) error { return a.ps(cmd.Context(), all, quiet) },
	}
	cmd.Flags().BoolVarP(&all, "all", "a", false, "also procs that have ended")
	cmd.Flags().BoolVarP(&quiet, "quiet", "q", false, "print ids only")
	return cmd
}

func (a *app) ps(ctx context.Context, all, quiet bool) error {
	c, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	procs, err := c.List(ctx, all)
	if err != nil {
		return err
	}
	switch {
	case quiet:
		for _, p := range procs {
			fmt.Fprintln(a.out, p.ID)
		}
		return nil
	case a.json:
		list := make([]procJSON, len(procs))
		for i, p := range procs {
			list[i] = procToJSON(p)
		}
		return a.printJSON(list)
	}
	t := a.table("PROC", "NAME", "STATE", "AGE", "CPU", "MEMORY", "COMMAND")
	for _, p := range procs {
		t.row(p.ID, clip(p.Name, 24), stateWords(p), ago(p.Times.Spawned), cpuWords(p), p.Memory, clip(strings.Join(append([]string{p.Program}, p.Args...), " "), 48))
	}
	return t.print()
}

func clip(s string, n int) string {
	if r := []rune(s); len(r) > n {
		return string(r[:n-1]) + "…"
	}
	return s
}

func stateWords(p sigma.ProcInfo) string {
	if p.State != sigma.ProcEnded {
		return p.State.String()
	}
	s := p.Status
	if s.ExitCode != 0 && s.Code != sigma.StatusOK {
		return fmt.Sprintf("%s (%d)", s.Code, s.ExitCode)
	}
	return s.Code.String()
}

func cpuWords(p sigma.ProcInfo) string {
	if d := p.Usage.UserTime + p.Usage.SystemTime; d > 0 {
		return short(d)
	}
	return "-"
}

// findProc gives the id of the proc that a person means by word: an id, the start of one, or a name. Procs that run come before ones that have ended.
func findProc(procs []sigma.ProcInfo, word string) (sigma.ProcID, error) {
	const op = "sigma.findProc"
	if word == "" {
		return "", usageError(nil, "list procs with: sigma ps -a", "a proc's id is empty")
	}
	for _, p := range procs {
		if string(p.ID) == word {
			return p.ID, nil
		}
	}
	var matches []sigma.ProcInfo
	for _, p := range procs {
		if strings.HasPrefix(string(p.ID), word) || p.Name == word {
			matches = append(matches, p)
		}
	}
	live := slices.DeleteFunc(slices.Clone(matches), func(p sigma.ProcInfo) bool { return p.State == sigma.ProcEnded })
	switch {
	case len(live) == 1:
		return live[0].ID, nil
	case len(matches) == 1:
		return matches[0].ID, nil
	case len(matches) == 0:
		return "", &sigma.Error{Op: op, Kind: sigma.KindNotFound, Msg: fmt.Sprintf("no proc has the id or name %.80q", word), Hint: "list procs with: sigma ps -a"}
	}
	if len(live) > 0 {
		matches = live
	}
	ids := make([]string, 0, 5)
	for _, p := range matches[max(0, len(matches)-5):] {
		ids = append(ids, string(p.ID))
	}
	return "", &sigma.Error{Op: op, Kind: sigma.KindInvalid, Msg: fmt.Sprintf("%d procs match %.80q", len(matches), word),
		Hint: "give more of the id; the newest are " + strings.Join(ids, ", ")}
}

// findProcs is findProc for several words.
func findProcs(ctx context.Context, c sigma.Procs, words []string) ([]sigma.ProcID, error) {
	procs, err := c.List(ctx, true)
	if err != nil {
		return nil, err
	}
	ids := make([]sigma.ProcID, len(words))
	for i, w := range words {
		if ids[i], err = findProc(procs, w); err != nil {
			return nil, err
		}
	}
	return ids, nil
}

func newInspectCommand(a *app) *cobra.Command {
	return &cobra.Command{
		Use:   "inspect PROC...",
		Short: "Show all that is known about procs",
		Long:  `Show all that is known about procs: what they run, where, since when, and how they ended. PROC is an id, the start of one, or a name.`,
		Example: `  sudo sigma inspect hello
  sudo sigma inspect --json 3kq`,
		Args: between(1, -1),
		RunE: func(cmd *cobra.Command, args []string) error { return a.inspect(cmd.Context(), args) },
	}
}

func (a *app) inspect(ctx context.Context, words []string) error {
	c, err := a.connect(ctx)
	if err != nil {
		return err
	}
	defer c.Close()
	procs, err := c.List(ctx, true)
	if err != nil {
		return err
	}
	found := make([]sigma.ProcInfo, len(words))
	for i, w := range words {
		id, err := findProc(procs, w)
		if err != nil {
			return err
		}
		found[i] = procs[slices.IndexFunc(procs, func(p sigma.ProcInfo) bool { return p.ID == id })]
		if found[i].State == sigma.ProcEnded { // a list does not carry the data of a status
			if st, err := c.WaitExit(ctx, id); err == nil {
				found[i].Status = st
			}
		}
	}
	if a.json {
		list := make([]procJSON, len(found))
		for i, p := range found {
			list[i] = procToJSON(p)
		}
		return a.printJSON(list)
	}
	for i, p := range found {
		if i > 0 {
			fmt.Fprintln(a.out)
		}
		if err := a.printProc(p); err != nil {
			return err
		}
	}
	return nil
}

func (a *app) printProc(p sigma.ProcInfo) error {
	t := newTable(a.out)
	say := func(what string, v any) {
		if s := fmt.Sprint(v); s != "" {
			t.row(what, s)
		}
	}
	say("id", p.ID)
	say("name", p.Name)
	say("realm", p.Realm)
	say("program", p.Program)
	for _, arg := range p.Args {
		say("argument", fmt.Sprintf("%q", arg))
	}
	say("parent", p.Parent)
	say("machine", p.Machine)
	say("class", p.Class)
	say("memory limit", p.Memory)
	say("state", p.State)
	if p.State == sigma.ProcEnded {
		say("status", endWords(p.Status))
		say("exit code", p.Status.ExitCode)
		say("message", p.Status.Msg)
		if n := len(p.Status.Data); n > 0 {
			say("data", fmt.Sprintf("%d bytes", n))
		}
	}
	begin := p.Times.Spawned
	for _, at := range []struct {
		what string
		t    time.Time
	}{{"spawned", begin}, {"placed", p.Times.Placed}, {"contained", p.Times.Contained}, {"executed", p.Times.Executed}, {"started", p.Times.Started}, {"ended", p.Times.Ended}} {
		switch {
		case at.t.IsZero() || at.t.Unix() <= 0:
		case at.what == "spawned":
			say(at.what, at.t.Format(time.RFC3339Nano))
		default:
			say(at.what, "+"+at.t.Sub(begin).Round(time.Microsecond).String())
		}
	}
	say("user time", p.Usage.UserTime)
	say("system time", p.Usage.SystemTime)
	say("memory peak", p.Usage.MemoryPeak)
	return t.print()
}
