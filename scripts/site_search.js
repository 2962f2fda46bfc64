// SPDX-License-Identifier: Apache-2.0
// Browsers start no worker of a page that was opened as a file, and the site's search is a worker: here a hidden frame runs its script.
if (location.protocol === "file:")
  window.Worker = class extends EventTarget {
    constructor(url) {
      super();
      this.frame = document.createElement("iframe");
      this.frame.hidden = true;
      document.body.appendChild(this.frame);
      const inside = this.frame.contentWindow;
      inside.postMessage = (data) => this.tell(data);
      inside.importScripts = (...urls) =>
        urls.reduce((before, each) => before.then(() => load(inside.document, each)), Promise.resolve());
      this.ready = load(inside.document, url);
    }
    tell(data) {
      const event = new MessageEvent("message", { data });
      this.dispatchEvent(event);
      if (this.onmessage) this.onmessage(event);
    }
    postMessage(data) {
      const inside = this.frame.contentWindow;
      this.ready.then(() => inside.dispatchEvent(new inside.MessageEvent("message", { data })));
    }
    terminate() {
      this.frame.remove();
    }
  };

function load(page, url) {
  return new Promise((done, failed) => {
    const script = page.createElement("script");
    script.src = url;
    script.onload = done;
    script.onerror = failed;
    page.body.appendChild(script);
  });
}
