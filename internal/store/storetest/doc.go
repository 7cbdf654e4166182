// Package storetest is the conformance suite of the store contract. Every engine runs it, whole.
//
//	storetest.Run(t, storetest.Engine{Open: func(t *testing.T, o storetest.Options) store.DB { … }})
package storetest
