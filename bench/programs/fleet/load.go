package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strconv"
	"sync"
	"sync/atomic"
	"time"

	"sigmaos.dev/lib/fleet"
	"sigmaos.dev/sdk"
	"sigmaos.dev/sdk/call"
	"sigmaos.dev/sigma"
)

// phase is a time in which the clients' rate goes evenly from one value to another.
type phase struct {
	from, to float64 // transactions per second of all clients, as parts of the most
	parts    float64 // of the transactions
}

// phases are those of 002 Fig 10: decreasing, constant, a sudden jump and decay, constant and low,
// a jump to constant and high.
var phases = []phase{{0.5, 0.25, 0.2}, {0.25, 0.25, 0.2}, {1, 0.25, 0.2}, {0.18, 0.18, 0.2}, {0.85, 0.85, 0.2}}

const (
	clients  = 4
	inFlight = 64 // transactions of a client at a time
)

// Second is what was offered and done in a second of the run.
type Second struct {
	Offered int `json:"offered"`
	Done    int `json:"done"`
}

// Report is what elastic prints.
type Report struct {
	Transactions int       `json:"transactions"`
	Failed       int64     `json:"failed"`
	FirstError   string    `json:"first_error,omitempty"`
	Seconds      []Second  `json:"seconds"`
	Steps        []float64 `json:"steps"` // when phases began, in s
	Begin        time.Time `json:"begin"`
}

// elastic offers transactions with intended start times, whatever became of those before.
func elastic(ctx context.Context, c *sdk.Client, args []string) error {
	most, err := strconv.ParseFloat(args[1], 64)
	if err != nil {
		return err
	}
	total, err := strconv.Atoi(args[2])
	if err != nil {
		return err
	}
	at, steps := schedule(most, total)
	r := &Report{Transactions: total, Begin: time.Now(), Steps: steps}
	done := make([]atomic.Int64, int(at[len(at)-1].Seconds())+30)
	var failed atomic.Int64
	var first atomic.Pointer[string]
	var all sync.WaitGroup
	for n := range clients {
		p := newPinner(c, args[0])
		free := make(chan struct{}, inFlight)
		all.Go(func() {
			var mine sync.WaitGroup
			defer p.close()
			defer mine.Wait()
			for i := n; i < total; i += clients {
				time.Sleep(time.Until(r.Begin.Add(at[i])))
				free <- struct{}{}
				mine.Go(func() {
					defer func() { <-free }()
					if err := p.transaction(ctx); err != nil {
						failed.Add(1)
						text := err.Error()
						first.CompareAndSwap(nil, &text)
					}
					done[min(int(time.Since(r.Begin).Seconds()), len(done)-1)].Add(1)
				})
			}
		})
	}
	all.Wait()
	r.Failed = failed.Load()
	if p := first.Load(); p != nil {
		r.FirstError = *p
	}
	r.Seconds = make([]Second, len(done))
	for i := range done {
		r.Seconds[i].Done = int(done[i].Load())
	}
	for _, t := range at {
		r.Seconds[int(t.Seconds())].Offered++
	}
	return json.NewEncoder(os.Stdout).Encode(r)
}

// full has one member serve as much as it can, and prints how many transactions a second that is.
func full(ctx context.Context, c *sdk.Client, name string) error {
	p := newPinner(c, name)
	defer p.close()
	const lasts = time.Second
	var done atomic.Int64
	var all sync.WaitGroup
	begin := time.Now()
	errs := make(chan error, clients)
	for range clients {
		all.Go(func() {
			for time.Since(begin) < lasts {
				if err := p.transaction(ctx); err != nil {
					errs <- err
					return
				}
				done.Add(1)
			}
		})
	}
	all.Wait()
	select {
	case err := <-errs:
		return err
	default:
	}
	fmt.Println(float64(done.Load()) / time.Since(begin).Seconds())
	return nil
}

// schedule gives the intended start of each transaction, and the begin of each phase in s.
func schedule(most float64, total int) (at []time.Duration, steps []float64) {
	now := 0.0
	for _, p := range phases {
		steps = append(steps, now)
		n := int(float64(total) * p.parts)
		for i := range n {
			at = append(at, time.Duration(now*float64(time.Second)))
			now += 1 / (most * (p.from + (p.to-p.from)*float64(i)/float64(n)))
		}
	}
	return at, steps
}

// pinner makes transactions, each at one member, over one connection to each.
type pinner struct {
	dialer *sdk.Dialer
	mu     sync.Mutex
	lines  map[string]*call.Client // mu; by member
}

func newPinner(c *sdk.Client, name string) *pinner {
	return &pinner{dialer: c.Dialer(fleet.Members(name)), lines: map[string]*call.Client{}}
}

func (p *pinner) close() {
	for _, l := range p.lines {
		l.Close()
	}
}

// transaction opens, reads and closes at one member. A member that has refused the first call,
// which has no effect then, is replaced by another.
func (p *pinner) transaction(ctx context.Context) error {
	for try := 0; ; try++ {
		pin, err := p.dialer.Pin(ctx, "")
		if err != nil {
			return err
		}
		p.mu.Lock()
		line := p.lines[pin.Member()]
		if line == nil {
			line = call.NewClient(pinned(pin), call.Config{})
			p.lines[pin.Member()] = line
		}
		p.mu.Unlock()
		if _, err := line.Call(ctx, openMethod, nil, nil); err != nil {
			if k := sigma.KindOf(err); try < 5 && (k == sigma.KindUnavailable || k == sigma.KindLost) {
				p.mu.Lock()
				if p.lines[pin.Member()] == line {
					delete(p.lines, pin.Member())
				}
				p.mu.Unlock()
				continue
			}
			return fmt.Errorf("open: %w", err)
		}
		b, err := line.Call(ctx, readMethod, nil, nil)
		if err != nil {
			return fmt.Errorf("read: %w", err)
		}
		if len(b) != block {
			return fmt.Errorf("%d bytes were read", len(b))
		}
		if _, err := line.Call(ctx, closeMethod, nil, nil); err != nil {
			return fmt.Errorf("close: %w", err)
		}
		return nil
	}
}

// zero waits until the fleet is empty, and times the first request then.
func zero(ctx context.Context, c *sdk.Client, args []string) error {
	times, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	for range times {
		for {
			entries, err := c.ReadDir(ctx, fleet.Members(args[0]))
			if err != nil {
				return err
			}
			n := 0
			for _, e := range entries {
				if e.ID.Kind == sigma.KindEndpoint {
					n++
				}
			}
			if n == 0 {
				break
			}
			time.Sleep(20 * time.Millisecond)
		}
		time.Sleep(300 * time.Millisecond) // until the last member has gone
		p := newPinner(c, args[0])
		begin := time.Now()
		if err := p.transaction(ctx); err != nil {
			return err
		}
		fmt.Println(time.Since(begin).Nanoseconds())
		p.close()
	}
	return nil
}

// direct makes requests in turns through the fleet's name and to its one member; a line for each
// block: requests per second of both.
func direct(ctx context.Context, c *sdk.Client, name string) error {
	d := c.Dialer(fleet.Members(name))
	pin, err := d.Pin(ctx, "")
	if err != nil {
		return err
	}
	hard := call.NewClient(pinned(pin), call.Config{})
	defer hard.Close()
	soft := call.NewClient(func(ctx context.Context) (net.Conn, error) { return d.Dial(ctx, "") }, call.Config{})
	defer soft.Close()
	const blocks, each = 10, 300 * time.Millisecond
	for range blocks {
		var rates [2]float64
		for i, line := range []*call.Client{soft, hard} {
			begin, n := time.Now(), 0
			for ; time.Since(begin) < each; n++ {
				if _, err := line.Call(ctx, openMethod, nil, nil); err != nil {
					return err
				}
			}
			rates[i] = float64(n) / time.Since(begin).Seconds()
		}
		fmt.Println(rates[0], rates[1])
	}
	return nil
}

// ask makes requests of a web fleet until it is asked to go, half of them POST, over kept
// connections.
func ask(ctx context.Context, c *sdk.Client, args []string) error {
	rate, err := strconv.Atoi(args[1])
	if err != nil {
		return err
	}
	stop, cancel := context.WithCancel(ctx)
	defer cancel()
	go func() {
		c.WaitEvict(stop)
		cancel()
	}()
	protocols := new(http.Protocols)
	protocols.SetHTTP1(len(args) < 3)
	protocols.SetUnencryptedHTTP2(len(args) > 2)
	t := &http.Transport{DialContext: c.Dialer(fleet.Members(args[0])).DialContext, MaxIdleConnsPerHost: 16,
		Protocols: protocols}
	client := &http.Client{Transport: t, Timeout: 5 * time.Second}
	var done, failed atomic.Int64
	var first atomic.Pointer[string]
	var all sync.WaitGroup
	if err := c.Started(ctx); err != nil {
		return err
	}
	tick := time.NewTicker(time.Second / time.Duration(rate))
	defer tick.Stop()
	for i := 0; ; i++ {
		select {
		case <-tick.C:
			all.Go(func() {
				if err := request(client, i); err != nil {
					failed.Add(1)
					text := err.Error()
					first.CompareAndSwap(nil, &text)
				}
				done.Add(1)
			})
			continue
		case <-stop.Done():
		}
		break
	}
	all.Wait()
	why := ""
	if p := first.Load(); p != nil {
		why = *p
	}
	fmt.Printf("%d %d %q\n", done.Load(), failed.Load(), why)
	return c.Exited(ctx, sigma.Status{Code: sigma.StatusOK})
}

func request(client *http.Client, i int) error {
	var reply *http.Response
	var err error
	if i%2 == 0 {
		reply, err = client.Get("http://fleet/")
	} else {
		reply, err = client.Post("http://fleet/", "text/plain", bytes.NewReader([]byte("x")))
	}
	if err != nil {
		return err
	}
	defer reply.Body.Close()
	if _, err := io.Copy(io.Discard, reply.Body); err != nil {
		return err
	}
	if reply.StatusCode != http.StatusOK {
		return errors.New(reply.Status)
	}
	return nil
}

func pinned(p *sdk.Pinned) func(context.Context) (net.Conn, error) {
	return func(ctx context.Context) (net.Conn, error) { return p.Dial(ctx, "") }
}
