package resolve

import (
	"context"

	"sigmaos.dev/sigma"
	"sigmaos.dev/trees/treeserver"
)

// GetAt reads up to count bytes at offset, in one round trip where the server can. The result says
// of which version they are and how large the file is. At most one message's worth is returned
// (sigmap.DataMax).
func (t *Tree) GetAt(ctx context.Context, path string, offset uint64, count int) (sigma.GetResult, error) {
	var r sigma.GetResult
	_, err := t.at(ctx, path, true, func(f sigma.File, names []string) (stop *sigma.Stopped, err error) {
		r, stop, err = treeserver.Get(ctx, f, names, offset, count)
		return stop, err
	})
	return r, err
}

// Handle returns a handle of the file at path, whose operations take a context each. The caller
// closes it.
func (t *Tree) Handle(ctx context.Context, path string) (sigma.File, error) {
	f, _, err := t.walk(ctx, path, true)
	return f, err
}
