package resolve

import (
	"testing"

	"sigmaos.dev/sigma"
)

// Errors speak of the program's path; that sigmad died is no fault of the root.
func TestErrorPaths(t *testing.T) {
	lost := sigma.Errorf("test", sigma.KindLost, "sigmad died")
	for _, c := range []struct {
		err        error
		path, want string
	}{
		{lost, "/", "sigmad died"},
		{lost, "/a/b", "/a/b: sigmad died"},
		{sigma.PathError("test", sigma.KindPermission, "b"), "/a/b", "/a/b: permission denied"},
		{sigma.PathError("test", sigma.KindPermission, ""), "/", "/: permission denied"},
	} {
		if got := withPath(c.err, c.path).Error(); got != c.want {
			t.Errorf("got %q, want %q", got, c.want)
		}
	}
}
