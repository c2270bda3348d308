package reach

import (
	"fmt"
	"testing"

	"sigmaos.dev/sigma"
)

// Goal: the latest endpoints of the object store are remembered, and no more than that.
func TestTold(t *testing.T) {
	x := New(Config{})
	x.tell(sigma.Endpoint{ID: "first"})
	for i := range toldMax {
		x.tell(sigma.Endpoint{ID: sigma.EndpointID(fmt.Sprint(i))})
	}
	if x.wasTold(sigma.Endpoint{ID: "first"}) || !x.wasTold(sigma.Endpoint{ID: "0"}) || x.wasTold(sigma.Endpoint{}) {
		t.Error("more or fewer endpoints are remembered than should be")
	}
}
