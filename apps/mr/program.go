package mr

import (
	"context"
	"errors"
	"fmt"
	"os"
	"runtime/debug"
	"strconv"

	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

// roleArgs are how many arguments of a job's proc precede the program's own.
const roleArgs = 4

// Args are the arguments of the job: what followed the program at `sigma mr run`. A program that is
// no proc of a job has none.
func Args() []string { return os.Args[min(1+roleArgs, len(os.Args)):] }

// Run coordinates, maps or reduces, as the proc's arguments say. It returns the code that the main
// function exits with, after printing why if that is not 0: os.Exit(mr.Run(mapper, reducer)).
func Run(m Mapper, r Reducer) (exitCode int) {
	err := run(context.Background(), m, r)
	if err == nil {
		return 0
	}
	fmt.Fprintln(os.Stderr, "mr:", err)
	if hint := sigma.HintOf(err); hint != "" {
		fmt.Fprintln(os.Stderr, "hint:", hint)
	}
	return 1
}

func run(ctx context.Context, m Mapper, r Reducer) error {
	self, err := parseArgs(os.Args[1:])
	if err != nil {
		return err
	}
	// The garbage collector is told what the proc was given, less what is not on its heap, so that
	// it collects before the limit kills the proc.
	debug.SetMemoryLimit(int64(self.Memory / 8 * 7))
	debug.SetGCPercent(400)
	c, err := sdk.Open(ctx)
	if err != nil {
		return err
	}
	if err := c.Started(ctx); err != nil {
		return err
	}
	who := c.Info().Principal
	self.Names, self.Procs, self.Init, self.Lead = c, c, c, leads(c)
	self.Attempt, self.Machine, self.Mapper, self.Reducer = string(who.Proc), who.Machine, m, r
	working, cancel := context.WithCancel(ctx)
	defer cancel()
	if self.Role == RoleCoordinate {
		go func() {
			if c.WaitEvict(working) == nil {
				cancel()
			}
		}()
	}
	s := self.do(working)
	if working.Err() != nil { // it was asked to go, and says nothing else of how it ended
		return nil
	}
	if !s.OK() {
		fmt.Fprintln(os.Stderr, "mr:", s.Msg)
	}
	return c.Exited(ctx, s)
}

// attempt is one attempt of a map or reduce, or a coordinator, as its proc knows it.
type attempt struct {
	Names   sigma.Namespace
	Procs   sigma.Procs
	Init    Registrar
	Lead    campaign
	Mapper  Mapper
	Reducer Reducer

	Role    string
	Dir     string          // of the job, /mr/JOB
	Index   int             // which map, reduce or coordinator
	Memory  sigma.Bytes     // what the proc was given; bounds the tables
	Attempt string          // the ProcID, different for each attempt
	Machine sigma.MachineID // where it runs
}

// parseArgs reads what arguments made.
func parseArgs(args []string) (t attempt, err error) {
	usage := &sigma.Error{Op: "mr.Run", Kind: sigma.KindInvalid, Msg: "this is a program of MapReduce jobs",
		Hint: "run it with: sigma mr run PROGRAM --input PATH --output PATH"}
	if len(args) < roleArgs {
		return t, usage
	}
	t.Role, t.Dir = args[0], args[1]
	if _, err := sigma.ParsePath(t.Dir); err != nil {
		return t, usage
	}
	memory, err := strconv.ParseUint(args[3], 10, 62)
	if t.Index, _ = strconv.Atoi(args[2]); err != nil || t.Index < 0 {
		return t, usage
	}
	t.Memory = sigma.Bytes(memory)
	return t, nil
}

// do works on the task and returns the status to exit with.
func (t *attempt) do(ctx context.Context) sigma.Status {
	var data []byte
	var err error
	switch t.Role {
	case RoleCoordinate:
		err = t.coordinate(ctx)
	case RoleMap:
		var c counters
		c, err = t.mapBin(ctx)
		data = c.encode()
	case RoleReduce:
		var r reduced
		r, err = t.reduce(ctx)
		data = r.encode()
	default:
		err = sigma.Errorf("mr.Run", sigma.KindInvalid, "no role %.20q", t.Role)
	}
	if err == nil {
		return sigma.Status{Code: sigma.StatusOK, Data: data}
	}
	s := sigma.Status{Code: sigma.StatusError, ExitCode: 1, Kind: sigma.KindOf(err), Msg: err.Error()}
	var missing missingError
	var input inputError
	switch {
	case errors.As(err, &missing):
		s.Data = missing.redo.encode()
	case errors.As(err, &input) && lasting(err):
		s.Data = []byte(permanent)
	}
	return s
}
