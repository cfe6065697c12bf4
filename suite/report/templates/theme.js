// Light or dark: as the reader's system says, until the button is pressed; paper is always light.
const themes = JSON.parse(document.getElementById("theme").textContent);
const prefersDark = window.matchMedia("(prefers-color-scheme: dark)");
const themeButton = document.getElementById("theme-toggle");
let isPrinting = false;

const isDark = () => (document.documentElement.dataset.theme || (prefersDark.matches ? "dark" : "light")) === "dark";
const colours = () => themes[isDark() && !isPrinting ? "dark" : "light"];

function nameTheme() {
  themeButton.textContent = isDark() ? "Light" : "Dark";
  themeButton.setAttribute("aria-label", `Change to ${isDark() ? "light" : "dark"} colours`);
}

function startTheme(redraw) {
  themeButton.hidden = false;
  nameTheme();
  themeButton.addEventListener("click", () => {
    document.documentElement.dataset.theme = isDark() ? "light" : "dark";
    nameTheme();
    redraw();
  });
  prefersDark.addEventListener("change", () => { nameTheme(); redraw(); });
}
