// Package examples has the manifests that the documentation shows and `verbena demo` applies.
package examples

import "embed"

// Demo has the manifests of the demo below demo/, and below refused/ those that it shows the refusal of.
//
//go:embed demo/*.yaml refused/*.yaml
var Demo embed.FS
