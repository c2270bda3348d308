package cli

import (
	"fmt"
	"io"

	"sigmaos.dev/cmd/sigma/term"
	"sigmaos.dev/sigma"
)

// Progress starts showing how much of total (0 = not known) is done: a bar on a terminal, elsewhere
// a line every few seconds, nothing for what is over sooner and nothing with --json.
func (a *App) Progress(title string, total int64) term.Progress {
	return a.newProgress(title, total, func(n int64) string { return fmt.Sprint(n) })
}

// ProgressBytes is progress for amounts of data.
func (a *App) ProgressBytes(title string, total int64) term.Progress {
	return a.newProgress(title, total, func(n int64) string { return sigma.Bytes(n).String() })
}

func (a *App) newProgress(title string, total int64, unit func(int64) string) term.Progress {
	out := a.Err
	if a.JSON {
		out = io.Discard
	}
	return term.NewProgress(out, title, total, unit)
}
