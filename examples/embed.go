// Package examples has the manifests that the documentation shows and `verbena demo` applies.
package examples

import "embed"

// Demo has the manifests of the demo below demo/.
//
//go:embed demo/*.yaml
var Demo embed.FS
