package member

import (
	"context"
	"time"

	"sigmaos.dev/lib/fleet"
	"sigmaos.dev/sdk/call"
	"sigmaos.dev/sigma"
	"sigmaos.dev/sigma/retry"
)

const (
	// aloneAfter is how long a member waits for a coordinator before it publishes itself.
	aloneAfter = time.Second
	// askMax bounds one question, so that a coordinator that stands still is not waited for when
	// another one leads.
	askMax = time.Second
	// askAgain is the pause before a question is asked again.
	askAgain = 100 * time.Millisecond
	// reportFirst, reportLeast and reportMost are the time from a report to the next one: before
	// the coordinator has said it, and what it can say.
	reportFirst = 250 * time.Millisecond
	reportLeast = 10 * time.Millisecond
	reportMost  = time.Minute
)

// ask makes a call to the coordinator that leads. After an error the next call looks for it anew.
func (m *Member) ask(ctx context.Context, method *call.Method, arg, reply any) error {
	m.mu.Lock()
	if m.client == nil {
		m.client = m.host.coordinator()
	}
	client := m.client
	m.mu.Unlock()
	err := client.Call(ctx, method, arg, reply)
	if err == nil || ctx.Err() == context.Canceled {
		return err
	}
	m.mu.Lock()
	if m.client == client {
		m.client = nil
	}
	m.mu.Unlock()
	client.Close()
	return err
}

// hangUp ends the connection to the coordinator.
func (m *Member) hangUp() {
	m.mu.Lock()
	defer m.mu.Unlock()
	if m.client != nil {
		m.client.Close()
		m.client = nil
	}
}

// enter makes the program a member. answered is false if no coordinator could be asked; the error
// is errUnwanted if one does not want the member.
func (m *Member) enter(ctx context.Context, e sigma.Endpoint) (leave func(context.Context) error, answered bool,
	err error) {
	leave, err = m.host.JoinAfter(ctx, m.dir, e, func(ctx context.Context) (err error) {
		if m.opts.Join != nil {
			if err := m.takeOver(ctx); err != nil {
				return err
			}
		}
		if m.arg.Name != "" {
			answered, err = m.admission(ctx, e, aloneAfter)
		}
		return err
	})
	return leave, answered, err
}

// admission asks the coordinator whether clients may be sent to the member, until that is answered.
// It reports false if no coordinator could be asked for as long as patience; 0 = without end.
func (m *Member) admission(ctx context.Context, e sigma.Endpoint, patience time.Duration) (answered bool, err error) {
	arg := fleet.EnterArg{MemberArg: m.arg, Endpoint: e.String()}
	for since := time.Now(); ; {
		within, cancel := context.WithTimeout(ctx, askMax)
		err := m.ask(within, fleet.EnterMethod, arg, nil)
		cancel()
		switch kind := sigma.KindOf(err); {
		case err == nil:
			return true, nil
		case ctx.Err() != nil:
			return false, ctx.Err()
		case kind == sigma.KindPermission:
			return true, errUnwanted
		case kind == sigma.KindTimeout: // it has the question: the health check was not good yet
			since = time.Now()
			continue
		case patience > 0 && time.Since(since) >= patience:
			return false, nil
		}
		retry.Pause(ctx, askAgain)
	}
}

// report reports the load until ctx ends. A member that was not admitted yet goes on asking; the
// error is errUnwanted if it is not wanted.
func (m *Member) report(ctx context.Context, e sigma.Endpoint, admitted bool) error {
	if !admitted {
		if _, err := m.admission(ctx, e, 0); err != nil {
			return err
		}
	}
	var spread uint64
	for first, next := true, reportFirst; retry.Pause(ctx, next); {
		var reply fleet.ReportReply
		within, cancel := context.WithTimeout(ctx, askMax)
		err := m.ask(within, fleet.ReportMethod, fleet.ReportArg{MemberArg: m.arg, Load: m.load.take()}, &reply)
		cancel()
		if err == nil {
			next = min(max(time.Duration(reply.Next), reportLeast), reportMost)
			if reply.Spread > spread && !first && m.renew != nil {
				m.renew()
			}
			spread, first = reply.Spread, false
		}
	}
	return ctx.Err()
}
