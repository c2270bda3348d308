package mr

import (
	"context"
	"errors"
	"strconv"

	"sigmaos.dev/sigma"
)

// Self is what a role needs to know about the proc it runs in.
type Self struct {
	Names   sigma.Namespace
	Procs   sigma.Procs
	Proc    sigma.ProcID
	Machine sigma.MachineID // where it runs
	Args    []string        // role, directory of the job, and for map and reduce the task's index and the memory given
}

// Do runs the role that the arguments name and returns the status to exit with.
func Do(ctx context.Context, self Self) sigma.Status {
	data, err := do(ctx, self)
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

func do(ctx context.Context, self Self) ([]byte, error) {
	usage := sigma.Errorf("mr.Do", sigma.KindInvalid, "arguments are %q; this program is started by: sigma mr",
		self.Args)
	if len(self.Args) < 2 {
		return nil, usage
	}
	if _, err := sigma.ParsePath(self.Args[1]); err != nil {
		return nil, err
	}
	if self.Args[0] == RoleCoordinate {
		return nil, Coordinate(ctx, self.Names, self.Procs, self.Args[1])
	}
	if len(self.Args) < 4 {
		return nil, usage
	}
	index, err := strconv.Atoi(self.Args[2])
	memory, err2 := strconv.ParseUint(self.Args[3], 10, 62)
	if err != nil || err2 != nil || index < 0 {
		return nil, usage
	}
	t := Task{Names: self.Names, Dir: self.Args[1], Index: index, Attempt: string(self.Proc), Machine: self.Machine,
		Memory: sigma.Bytes(memory)}
	switch self.Args[0] {
	case RoleMap:
		c, err := Map(ctx, t)
		return c.encode(), err
	case RoleReduce:
		r, err := Reduce(ctx, t)
		return r.encode(), err
	}
	return nil, usage
}
