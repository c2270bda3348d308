package mr

import (
	"context"

	"sigmaos.dev/sdk"
	"sigmaos.dev/sigma"
)

// Registrar keeps procs running: a client of initd.
type Registrar interface {
	Register(ctx context.Context, r sigma.Registration) error
	Unregister(ctx context.Context, name string) error
}

// campaign waits until the proc leads at path, of which dir is fenced; lost is closed when it leads
// no more.
type campaign func(ctx context.Context, path, dir string) (epoch sigma.Epoch, lost <-chan struct{}, err error)

func leads(c *sdk.Client) campaign {
	return func(ctx context.Context, path, dir string) (sigma.Epoch, <-chan struct{}, error) {
		l, err := c.Campaign(ctx, sdk.Election{Path: path, Data: []byte(c.Info().Principal.Proc),
			Fenced: []string{dir}})
		if err != nil {
			return 0, nil, err
		}
		return l.Fence().Epoch, l.Lost(), nil
	}
}

// startsMax bounds how often initd starts one coordinator whose program fails at once.
const startsMax = 100

// register has initd keep the coordinators of a job. They are latency-critical with next to no
// reservation, because such procs of one name are spread over machines.
func register(ctx context.Context, init Registrar, dir jobDir, job *Job) error {
	return inParallel(Coordinators, Coordinators, func(i int) error {
		return init.Register(ctx, sigma.Registration{Name: dir.registration(i), Restart: sigma.RestartOnFailure,
			Most: startsMax, Descriptor: sigma.Descriptor{Program: job.Program, Name: "mr-coord",
				Memory: MemoryCoordinator, Class: sigma.LatencyCritical, CPU: 10, Start: sigma.StartedByCall,
				Env: oneCore, Args: arguments(RoleCoordinate, dir, i, MemoryCoordinator, job)}})
	})
}

// unregister ends that, of the last coordinator last.
func unregister(ctx context.Context, init Registrar, dir jobDir, last int) error {
	for i := range Coordinators {
		err := init.Unregister(ctx, dir.registration((last+1+i)%Coordinators))
		if err != nil && sigma.KindOf(err) != sigma.KindNotFound {
			return err
		}
	}
	return nil
}

// coordinate stands by until the proc leads, does what is left of the job and then ends the
// registrations of all coordinators, its own last: whenever it dies before that, initd starts it
// again. So it does of a job that somebody has ended.
func (t *attempt) coordinate(ctx context.Context) error {
	dir := jobDir(t.Dir)
	data, _, err := t.Names.Get(ctx, dir.file("job"))
	if err == nil {
		err = t.lead(ctx, dir, decodeJob(data))
	} else if sigma.KindOf(err) == sigma.KindNotFound {
		err = nil
	}
	if err != nil {
		return err
	}
	return unregister(context.WithoutCancel(ctx), t.Init, dir, t.Index)
}

func (t *attempt) lead(ctx context.Context, dir jobDir, job Job) error {
	epoch, lost, err := t.Lead(ctx, dir.file("leader"), t.Dir)
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		select {
		case <-lost:
			cancel()
		case <-ctx.Done():
		}
	}()
	c := &coordinator{names: t.Names, procs: t.Procs, mapper: &t.Mapper, dir: dir, job: job, epoch: epoch,
		events: make(chan event, 64)}
	return c.work(ctx)
}
